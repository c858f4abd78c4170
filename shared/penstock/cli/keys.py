"""`penstock key`."""

from __future__ import annotations

import argparse
import sys

from penstock.api_keys import entry, new_key
from penstock.errors import InvalidRequest

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
