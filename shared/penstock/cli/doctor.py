"""`penstock doctor`."""

from __future__ import annotations

import argparse

from penstock.cli.model_impl import add_model_impl
from penstock.cli.parser import Parser, examples


def add(parser: Parser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "Checks processor, memory, libraries, ports and models, and says what would keep a system "
        "from running well on this machine. Exit codes: 0 nothing to fix, 1 something is missing."
    )
    parser.epilog = examples(
        "penstock doctor",
        "penstock doctor ./model.Q4_K_M.gguf    # what it takes, and which backends have all of it",
        "penstock doctor ./model.Q4_K_M.gguf --start    # where the time until it is ready goes",
        "penstock doctor --json | jq '.[] | select(.ok | not)'",
    )
    parser.add_argument(
        "model",
        nargs="?",
        help="Check this model instead: memory, and which backends can serve it.",
    )
    parser.add_argument(
        "--start",
        action="store_true",
        help="Start a server of MODEL, and say where the time until it is ready goes; it is stopped"
        " then.",
    )
    add_model_impl(parser)
    parser.add_argument("--json", action="store_true", help="As JSON, for scripts.")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from penstock.cli.processes import run_doctor
    from penstock.errors import InvalidRequest

    if arguments.start and arguments.model is None:
        raise InvalidRequest("--start wants a MODEL to start a server of")
    return run_doctor(arguments)
