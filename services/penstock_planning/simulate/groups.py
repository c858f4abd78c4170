"""The KV groups of a model that is simulated, as a flag says them."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock.model.kv_layout import FULL, KVGroup
from penstock_engine.handlers.ranges import wrong_groups

ALLOWED = "full, window=TOKENS, chunk=TOKENS, states=TOKENS:BLOCKS"


def parse_groups(text: str) -> tuple[KVGroup, ...]:
    """KV groups from a text such as `full,window=1024,states=2048:12`: layers that see everything,
    some with a window, and recurrent ones, whose states are copied to 12 blocks after each 2,048
    tokens. Raises InvalidRequest."""
    return tuple(_group(part) for part in text.split(","))


def _group(text: str) -> KVGroup:
    kind, _, value = text.strip().partition("=")
    numbers = value.split(":")
    known = all(number.isdecimal() and len(number) < 10 for number in numbers)
    if kind == "full" and not value:
        return FULL
    if known and kind == "window" and len(numbers) == 1:
        return KVGroup(window=int(value))
    if known and kind == "chunk" and len(numbers) == 1:
        return KVGroup(chunk=int(value))
    if known and kind == "states" and len(numbers) == 2:
        return KVGroup(every=int(numbers[0]), blocks=int(numbers[1]))
    raise InvalidRequest(f"unknown KV group {text!r}; allowed: {ALLOWED}")


def check_groups(groups: tuple[KVGroup, ...], block_size: int) -> None:
    """Raises InvalidRequest for groups that no model can have."""
    wrong = wrong_groups(groups, block_size)
    if wrong is not None:
        raise InvalidRequest(wrong)
