"""What the front end says of itself, and what can be read off that."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """at: seconds of the machine's monotonic clock.  boot: of the engine core in the session; empty
    without one.  held: requests that it says it has, waiting and running, as of its last Status.
    open: that have not ended.  accepted: so far, in the first place.  tokens: that came, so far."""

    at: float
    boot: str
    held: int
    open: int
    accepted: int
    tokens: int


class Outcome(msgspec.Struct, tag="outcome"):
    """equal: requests that said what they would have said undisturbed; wrong: all others.  failed,
    different: the first of these, in words."""

    equal: int = 0
    wrong: int = 0
    failed: list[str] = []
    different: list[str] = []


class Recovery(msgspec.Struct, frozen=True):
    """Seconds from the blow on; None: not while it was looked at.

    first: until the first token that the next life gave.  accepted: until the engine core said that
    it has all that are open.
    """

    first: float | None
    accepted: float | None


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
    first = next((each.at for each in after[back:] if each.tokens > known), None)
    accepted = next((each.at for each in after[back:] if each.held >= each.open), None)
    return Recovery(
        None if first is None else first - blow, None if accepted is None else accepted - blow
    )
