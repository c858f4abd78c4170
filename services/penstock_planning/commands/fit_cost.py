"""`penstock fit-cost`: the simulator's step cost, from recordings. Only what is run is imported."""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.cli.parser import Parser
from penstock.cli.replay import silence


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = "Fits the simulator's step cost to the steps of recordings (--record-dir)."
    parser.add_argument("logs", nargs="+", metavar="RECORD", help="A recording, or a folder.")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="Write it there, for simulate --step-cost."
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="Write the recorded requests there, as a trace."
    )
    parser.set_defaults(run=_fit_cost)


def _fit_cost(arguments: argparse.Namespace) -> int:
    from penstock_planning.simulate.commands import fit

    silence()
    print(fit(arguments.logs, arguments.output, arguments.trace), flush=True)
    return 0
