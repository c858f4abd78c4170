"""Penstock's library beside llama.cpp, OpenVINO GenAI, vLLM and transformers, in one run:
`python loadtest/peers/inprocess.py --help`.

Each loads its model once, in a process of its own environment, and warms up. Then they take turns:
a round is every piece of work on every system, one computing at a time. A probe of the machine's
limits runs before each round. Medians go to a JSON file, a Markdown table and a bar chart.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from loadtest.peers.command import Comparison
from loadtest.peers.library.report import draw_chart, to_dict, to_markdown
from loadtest.peers.library.systems import NAMES, make_system
from loadtest.peers.library.work import SMOKE_WORK, WORK

LIBRARIES = Comparison(
    program="loadtest/peers/inprocess.py",
    description=__doc__,
    section="inprocess",
    caption="tokens per second",
    kind="systems",
    names=NAMES,
    make=make_system,
    work=WORK,
    smoke_work=SMOKE_WORK,
    seconds=780.0,
    to_dict=to_dict,
    to_markdown=to_markdown,
    draw=draw_chart,
    limits=True,
)

if __name__ == "__main__":
    sys.exit(LIBRARIES.main())
