"""`penstock curve-keys`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from penstock.cli.parser import Parser, examples

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Makes CurveZMQ keys for processes that talk over tcp://: FOLDER/engine for the engine"
        " core, with the public keys of those who may dial it, and a folder for each of these,"
        " which they take as --curve-dir. What is there is kept, so it can be run at every start."
    )
    parser.epilog = examples("penstock curve-keys keys", "penstock curve-keys keys --frontend lab")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    for role, default in (("frontend", "gateway"), ("worker", "worker")):
        parser.add_argument(
            f"--{role}",
            dest=f"{role}s",
            type=_name,
            action="append",
            metavar="NAME",
            default=[default],
            help=f"One more {role}'s folder, beside the one of `{default}`; repeatable.",
        )
    parser.set_defaults(run=run_curve_keys)


def run_curve_keys(arguments: argparse.Namespace) -> int:
    """Prints each file that was made. Raises StartupError."""
    from penstock.transport.curve_keys import make_folders

    for file in make_folders(arguments.folder, arguments.frontends, arguments.workers):
        print(file, flush=True)
    return 0


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None or text == "engine":
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed; expected letters, digits, '.', '_' and '-', and not `engine`"
        )
    return text
