"""Penstock beside vLLM and llama.cpp, in one run: `python loadtest/peers/compare.py --help`.

Each server is started and stays. Then they take turns: a round is every workload on every server,
one computing at a time; the others are stopped with SIGSTOP. Medians go to a JSON file, a Markdown
table and a bar chart.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from loadtest.peers.cells import CELLS, SMOKE_CELLS
from loadtest.peers.command import Comparison
from loadtest.peers.server_report import draw_chart, to_dict, to_markdown
from loadtest.peers.servers import NAMES, make_server

SERVERS = Comparison(
    program="loadtest/peers/compare.py",
    description=__doc__,
    section="comparison",
    caption="output tokens per second",
    kind="servers",
    names=NAMES,
    make=make_server,
    work=CELLS,
    smoke_work=SMOKE_CELLS,
    seconds=660.0,
    to_dict=to_dict,
    to_markdown=to_markdown,
    draw=draw_chart,
)

if __name__ == "__main__":
    sys.exit(SERVERS.main())
