"""`penstock key`."""

from __future__ import annotations

import argparse
import sys

from penstock.cli.parser import Parser, examples
from penstock.errors import InvalidRequest
from penstock.request.api_keys import entry, new_key

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
)


def add(parser: Parser) -> None:
    """The command's arguments."""
    parser.description = (
        "Makes an API key. Prints its entry for the --api-keys file to stdout, and the key"
        " itself to stderr. The entry contains the key's SHA-256; the key is not stored anywhere."
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
    parser.add_argument("--admin", action="store_true", default=None, help="May read /metrics.")
    parser.set_defaults(run=run_key)


def run_key(arguments: argparse.Namespace) -> int:
    """Prints a new key's entry, and the key. Raises InvalidRequest."""
    key = new_key()
    try:
        line = entry(key, **{name: getattr(arguments, name) for name in _FIELDS})
    except ValueError as error:  # msgspec's own is one too
        raise InvalidRequest(str(error)) from None
    print(line, flush=True)
    print(f"API key of {arguments.name}, shown this once: {key}", file=sys.stderr, flush=True)
    return 0
