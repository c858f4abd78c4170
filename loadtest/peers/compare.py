"""Penstock beside vLLM and llama.cpp, in one run: `python loadtest/peers/compare.py --help`.

Each server is started in turn, warmed up and put under the same workloads; then again, for as many
rounds as asked. A server that isn't measured is stopped with SIGSTOP, or (--restart) ended. Medians
go to a JSON file, a Markdown table and a bar chart.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from loadtest.peers.cells import CELLS, SMOKE_CELLS
from loadtest.peers.command import chosen, peers_parser
from loadtest.peers.measure import Comparison, compare, to_dict
from loadtest.peers.presentation import draw_chart, to_markdown
from loadtest.peers.servers import NAMES, SetupError, make_server
from loadtest.report.facts import ROOT, without_folders
from loadtest.report.files import Report, say

PROGRAM = "loadtest/peers/compare.py"


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 1 where a server or a request failed; 2 where something isn't installed."""
    command = peers_parser(PROGRAM, __doc__, "servers", NAMES, seconds=660.0)
    command.add_argument(
        "--restart", action="store_true", help="start each server anew in each round"
    )
    command.add_argument("--no-progress", action="store_true")
    flags = command.parse_args(arguments)
    report = Report("comparison", PROGRAM, flags, arguments)
    try:
        model, servers = chosen(flags.model, flags.servers, make_server)
    except SetupError as error:
        say(f"compare: {error}")
        return 2
    own = {
        "model": model.name,
        "commands": {s.name: " ".join(map(without_folders, s.command(0))) for s in servers},
    }

    def save(comparison: Comparison) -> None:
        facts = report.facts(**own)
        report.save(facts, to_dict(comparison), to_markdown(comparison, facts))

    comparison = compare(
        servers,
        SMOKE_CELLS if flags.smoke else CELLS,
        rounds=min(flags.rounds, 2) if flags.smoke else flags.rounds,
        budget=flags.budget,
        logs=ROOT / "loadtest" / "out",
        progress=not flags.no_progress,
        resident=not flags.restart,
        save=save,
    )
    report.finish(
        to_dict(comparison),
        lambda facts: to_markdown(comparison, facts),
        draw=lambda path: draw_chart(comparison, path),
        section="comparison",
        caption="output tokens per second",
        **own,
    )
    return int(any(each.failures or each.failed_requests() for each in comparison.outcomes))


if __name__ == "__main__":
    sys.exit(main())
