"""What the front end says of itself, and what can be read off that."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """Where the front end stands at one moment."""

    at: float  # seconds of the machine's monotonic clock
    boot: str  # of the engine core in the session; empty without one
    held: int  # requests that the engine core's last Status counts, waiting and running
    open: int  # requests that have not ended
    accepted: int  # requests so far, each counted once
    tokens: int  # that came so far


class Outcome(msgspec.Struct, tag="outcome"):
    """What became of all requests."""

    equal: int = 0  # that said what they would have said undisturbed
    wrong: int = 0  # all others
    failed: list[str] = []  # the first of them, in words
    different: list[str] = []  # the first of them, in words


class Recovery(msgspec.Struct, frozen=True):
    """Seconds from the blow on; None: not while it was looked at."""

    first: float | None  # until the first token that the next life gave
    accepted: float | None  # until the engine core said that it has all that are open


def recovery(samples: Sequence[Sample], blow: float) -> Recovery:
    """After the engine core was killed at the moment `blow`.

    As coarse as samples are, and `accepted` as Status is: neither is flattered by that.
    """
    before = [sample for sample in samples if sample.at < blow and sample.boot]
    after = [sample for sample in samples if sample.at >= blow]
    if not before:
        return Recovery(None, None)
    dead = before[-1].boot
    back = next((i for i, each in enumerate(after) if each.boot not in ("", dead)), None)
    if back is None:
        return Recovery(None, None)
    # What the dead one had sent may still have come before its session was over.
    known = after[back - 1].tokens if back else before[-1].tokens
    first = next((each.at - blow for each in after[back:] if each.tokens > known), None)
    accepted = next((each.at - blow for each in after[back:] if each.held >= each.open), None)
    return Recovery(first, accepted)
