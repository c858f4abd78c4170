"""The `penstock` command. Exit codes: 0, 1 (failed), 2 (usage), 78 (a child that can never start).

Nothing heavy is imported before it is known what is to be done: `penstock --help` is quick, and a
gateway never loads what a worker needs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from penstock.cli import engine_tools, flags
from penstock.errors import InvalidRequest, PenstockError
from penstock.version import __version__

USAGE = 2
FAILED = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except InvalidRequest as error:
        print(f"penstock: error: {error}", file=sys.stderr)
        return USAGE
    except PenstockError as error:
        print(f"penstock: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130


class _Parser(argparse.ArgumentParser):
    """Takes no abbreviated flags: what `--max-n` means would change with the next setting."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **keywords})


def _parser() -> _Parser:
    parser = _Parser(prog="penstock", description="Serves large language models.")
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_gateway(commands)
    _add_engine(commands)
    _add_worker(commands)
    _add_prepare(commands)
    _add_key(commands)
    _add_doctor(commands)
    engine_tools.add_commands(commands)
    _add_config_table(commands)
    return parser


def _add_serve(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "serve",
        usage="penstock serve [MODEL] [--flag VALUE ...]",
        help="start and supervise the whole system on this machine",
        description="Starts gateways, engine core and worker, restarts what dies, and stops them "
        "all on SIGTERM or Ctrl-C.",
    )
    parser.add_argument("positional_model", nargs="?", metavar="MODEL", help="same as --model")
    flags.add_settings(parser, flags.SERVE)
    library = parser.add_argument_group("For front ends other than HTTP")
    library.add_argument("--no-http", action="store_true", help="Start no gateway.")
    library.add_argument(
        "--frontend-endpoint",
        metavar="ENDPOINT",
        help="Where the engine core listens for front ends; default: a private ipc socket.",
    )
    library.add_argument(
        "--report-fd",
        type=int,
        metavar="FD",
        help='Pipe that gets one JSON line, {"ready": true} or {"error": "…"}. When its reader '
        "goes away, the system stops.",
    )
    parser.set_defaults(run=_serve)


def _add_gateway(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser("gateway", help="run one gateway (HTTP front end)")
    parser.add_argument(
        "--engine-endpoint", required=True, metavar="ENDPOINT", help="The engine's front-end side."
    )
    parser.add_argument("--index", type=int, default=0, metavar="N", help="Number, for its name.")
    parser.add_argument("--fd", type=int, metavar="FD", help="A bound socket to accept from.")
    flags.add_settings(parser, flags.GATEWAY, flags.TRANSPORT)
    _add_supervision(parser)
    parser.set_defaults(run=_child("gateway"))


def _add_engine(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser("engine", help="run one engine core (scheduler, KV pool)")
    parser.add_argument(
        "--model-dir", required=True, metavar="FOLDER", help="Prepared folder: penstock prepare."
    )
    parser.add_argument(
        "--frontend-endpoint", required=True, metavar="ENDPOINT", help="Where front ends dial in."
    )
    parser.add_argument(
        "--worker-endpoint", required=True, metavar="ENDPOINT", help="Where workers dial in."
    )
    flags.add_settings(parser, flags.ENGINE, flags.SHUTDOWN)
    _add_supervision(parser)
    parser.set_defaults(run=_child("engine"))


def _add_worker(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser("worker", help="run one worker (model, KV tensors)")
    parser.add_argument(
        "--engine-endpoint", required=True, metavar="ENDPOINT", help="The engine's worker side."
    )
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="Rank in its group.")
    flags.add_settings(parser, flags.TRANSPORT)
    _add_supervision(parser)
    parser.set_defaults(run=_child("worker"))


def _add_supervision(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Given by the supervisor")
    group.add_argument(
        "--supervised-by", type=int, metavar="PID", help="Leave when this parent is gone."
    )
    group.add_argument(
        "--failure-file", metavar="FILE", help="Where to write why this process failed."
    )


def _add_prepare(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "prepare",
        help="make a model's prepared folder and print its path",
        description="Finds or downloads a model and writes what every process reads of it: "
        "tokenizer, chat template, normalised configuration, where the weights lie.",
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="Folder for prepared models.")
    _add_supervision(parser)
    parser.set_defaults(run=_child("prepare"))


def _add_key(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "key",
        help="make an API key and print its entry for --api-keys",
        description="Prints the entry to stdout, for the file, and the key to stderr, for whoever "
        "will use it: penstock key alice >> keys.yaml. The entry holds the key's SHA-256; nothing "
        "holds the key.",
    )
    parser.add_argument("name", metavar="NAME", help="Whose it is, for people and logs.")
    parser.add_argument("--tenant", help="Keys of one tenant share its terms; default: its own.")
    parser.add_argument("--weight", type=int, help="Of its share under the policy fair.")
    parser.add_argument("--highest-priority", type=int, metavar="N", help="It may ask for.")
    parser.add_argument("--max-concurrent", type=int, metavar="N", help="Requests open at once.")
    parser.add_argument("--requests-per-minute", type=int, metavar="N")
    parser.add_argument("--tokens-per-minute", type=int, metavar="N")
    parser.add_argument(
        "--model", dest="models", action="append", metavar="NAME", help="It may use; repeatable."
    )
    parser.add_argument("--admin", action="store_true", default=None, help="May read /metrics.")
    parser.set_defaults(run=_key)


def _add_doctor(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser("doctor", help="say what this machine can do, and why not")
    parser.add_argument("--json", action="store_true", help="As JSON, for scripts.")
    parser.set_defaults(run=_doctor)


def _add_config_table(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser("config-table", help="print the reference table of all flags")
    parser.add_argument(
        "--update", metavar="FILE", help="Write it between the markers of this Markdown file."
    )
    parser.set_defaults(run=_config_table)


def _serve(arguments: argparse.Namespace) -> int:
    from penstock.cli.serve import run_serve

    return run_serve(arguments)


def _child(role: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        from penstock.cli.processes import run_child

        return run_child(role, arguments)

    return run


def _key(arguments: argparse.Namespace) -> int:
    from penstock.cli.keys import run_key

    return run_key(arguments)


def _doctor(arguments: argparse.Namespace) -> int:
    from penstock.cli.processes import run_doctor

    return run_doctor(arguments)


def _config_table(arguments: argparse.Namespace) -> int:
    from penstock.cli.table import run_config_table

    return run_config_table(arguments)


if __name__ == "__main__":
    sys.exit(main())
