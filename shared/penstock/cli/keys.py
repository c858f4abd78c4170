"""`penstock key` and `penstock curve-keys`: keys of callers, and of processes on several hosts."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from penstock.cli.parser import Parser, examples
from penstock.errors import InvalidRequest
from penstock.request.api_keys import entry, keep_key, new_key

_FIELDS = (
    "name",
    "tenant",
    "weight",
    "highest_priority",
    "max_concurrent",
    "requests_per_minute",
    "tokens_per_minute",
    "models",
    "admin",
    "metrics",
    "unload_models",
    "share_identical_requests",
)


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Makes an API key. Prints its entry for the --api-keys file to stdout, and the key itself "
        "to stderr; only its SHA-256 is stored."
    )
    parser.epilog = examples("penstock key alice >> keys.yaml")
    parser.add_argument("name", metavar="NAME", help="Label of the key, for people and logs.")
    parser.add_argument(
        "--tenant", help="Keys of one tenant share its terms; default: a tenant for this key alone."
    )
    parser.add_argument(
        "--weight", type=int, help="Weight of the tenant's share under the policy fair."
    )
    parser.add_argument(
        "--highest-priority", type=int, metavar="N", help="Best priority that the key may request."
    )
    parser.add_argument("--max-concurrent", type=int, metavar="N", help="Requests open at once.")
    parser.add_argument("--requests-per-minute", type=int, metavar="N")
    parser.add_argument("--tokens-per-minute", type=int, metavar="N")
    parser.add_argument(
        "--model", dest="models", action="append", metavar="NAME", help="It may use; repeatable."
    )
    parser.add_argument(
        "--admin",
        action="store_true",
        default=None,
        help="May read /metrics and control the server.",
    )
    parser.add_argument(
        "--metrics",
        action="store_true",
        default=None,
        help="May read /metrics and /load, and nothing else.",
    )
    parser.add_argument(
        "--unload-models",
        action="store_true",
        default=None,
        help="May have models that are loaded on demand unloaded.",
    )
    parser.add_argument(
        "--share-identical-requests",
        action="store_true",
        default=None,
        help="Its tenant's identical requests are computed once.",
    )
    parser.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help="Where to put the key instead of on stderr; a key that is there already is kept.",
    )
    parser.set_defaults(run=run_key)


def run_key(arguments: argparse.Namespace) -> int:
    """Prints a key's entry, and a new key. Raises InvalidRequest and StartupError."""
    kept = arguments.key_file
    key = new_key() if kept is None else keep_key(kept)
    try:
        line = entry(key, **{name: getattr(arguments, name) for name in _FIELDS})
    except ValueError as error:  # msgspec's own is one too
        raise InvalidRequest(str(error)) from None
    print(line, flush=True)
    if kept is None:
        print(f"API key of {arguments.name}, shown this once: {key}", file=sys.stderr, flush=True)
    return 0


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def add_curve_keys(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Makes CurveZMQ keys for tcp://: FOLDER/engine for the engine core, with the public keys "
        "of those who may connect, and a folder for each of these, which they take as "
        "--curve-dir. What is there is kept."
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
