"""`penstock replay`: a recording's decisions, made again. Only what is run is imported."""

from __future__ import annotations

import argparse
import logging

from penstock.cli.parser import Parser

DIFFERENT = 1


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Makes the decisions of a recording (--record-dir) again. Exit status: 0 all are alike, 1 "
        "one differs (it is shown), 2 a recording can't be read."
    )
    parser.add_argument("logs", nargs="+", metavar="LOG", help="A recording, or a folder of them.")
    parser.add_argument("--log", action="store_true", help="Show what the core logs, too.")
    parser.set_defaults(run=_replay)


def _replay(arguments: argparse.Namespace) -> int:
    from penstock_engine.record.replay_files import replay_all

    if not arguments.log:
        silence()
    alike = replay_all(arguments.logs, lambda line: print(line, flush=True))
    return 0 if alike else DIFFERENT


def silence() -> None:
    """Keeps the core's log from stderr: it logs as if all of it were happening."""
    logger = logging.getLogger("penstock_engine")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
