"""How long a step takes: linear in what it computes."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import msgspec

from penstock.errors import InvalidRequest
from penstock.protocol.to_worker import SlotWork

TERMS = ("base_ms", "token_ms", "sequence_ms", "context_ms")


class SizeSpread(msgspec.Struct, frozen=True):
    """What StepCost.spread is, of steps that take up to most_ms without it, and longer than those
    of the one before."""

    most_ms: float
    spread: tuple[float, ...]


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds: of every step, of each token, of each sequence, of each pair of a token and a
    token that it attends to, and of what a step costs outside the model's computation; of each
    adapter whose factors a step reads, and of each token that has one; of each KV block that is
    copied to the host tier, or back; of each token whose KV a sequence of the step reads (once for
    all that it computes); of each token's arithmetic that goes on while weights are read, so that
    of all of it and the base only the longer one counts.

    spread: of how many times as long as that a step takes, quantiles at even distances; each step
    draws one of them. Empty: exactly as long.  by_size: the same by the length of a step, where
    that is known: short ones vary more.

    curve: pairs of tokens, ascending, and of milliseconds of a step that computes so many, for what
    isn't linear: a mixture's steps read more of its experts the more tokens they have, and never
    more than all. Between two pairs, and beyond the last ones, it is linear."""

    base_ms: float = 5.0
    token_ms: float = 0.1
    sequence_ms: float = 0.05
    context_ms: float = 0.0
    overhead_ms: float = 0.0
    adapter_ms: float = 0.0
    adapted_ms: float = 0.0
    copy_ms: float = 0.0
    read_ms: float = 0.0
    hidden_ms: float = 0.0
    spread: tuple[float, ...] = ()
    by_size: tuple[SizeSpread, ...] = ()
    curve: tuple[tuple[int, float], ...] = ()

    def spread_of(self, seconds: float) -> tuple[float, ...]:
        """The spread of a step that takes so long without it."""
        for part in self.by_size:
            if 1000 * seconds <= part.most_ms:
                return part.spread
        return self.by_size[-1].spread if self.by_size else self.spread

    def copying(self, blocks: int) -> float:
        """Time that a step's copies of blocks take."""
        return 0.001 * self.copy_ms * blocks

    def seconds(
        self,
        tokens: int,
        sequences: int,
        pairs: int,
        adapters: int = 0,
        adapted: int = 0,
        reads: int = 0,
    ) -> float:
        """Time that one step takes of the worker. adapters: different ones; adapted: tokens that
        have one; reads: tokens whose KV is read."""
        return 0.001 * (
            max(self.base_ms, self.hidden_ms * tokens)
            + self.overhead_ms
            + self.token_ms * tokens
            + self.sequence_ms * sequences
            + self.context_ms * pairs
            + self.adapter_ms * adapters
            + self.adapted_ms * adapted
            + self.read_ms * reads
            + self._on_curve(tokens)
        )

    def _on_curve(self, tokens: int) -> float:
        """Returns milliseconds."""
        if not self.curve:
            return 0.0
        last = bisect_right(self.curve, tokens, 1, len(self.curve) - 1, key=itemgetter(0))
        (before, low), (after, high) = self.curve[last - 1], self.curve[last]
        return max(0.0, low + (high - low) * (tokens - before) / (after - before))


NUMBERS = tuple(name for name in StepCost.__struct_fields__ if name.endswith("_ms"))


class FittedCost(msgspec.Struct, frozen=True, kw_only=True):
    """What `fit-cost` and `bench steps` write. error_percent: median of |predicted − measured| /
    measured.  about: what was measured, where and with which settings.  left_out_percent: of the
    steps, as the machine was busy with something else meanwhile; the others are counted."""

    cost: StepCost
    steps: int
    error_percent: float
    error_p95_percent: float
    total_error_percent: float
    about: dict[str, str | float] = {}
    left_out_percent: float = 0.0


LEAST_MS, MOST_MS = 1e-9, 60_000.0
"""What a part of a step may cost, if it costs anything."""
LEAST_STEP_MS = 0.001
"""What a step of one token takes at least."""
MOST_POINTS = 64
"""Points that a curve has at most."""
NAMES = ", ".join(name.removesuffix("_ms") for name in NUMBERS)


def check_cost(cost: StepCost, source: str) -> None:
    """Raises InvalidRequest, which names what is allowed."""
    for name in NUMBERS:
        value = getattr(cost, name)
        if not 0 <= value <= MOST_MS:
            raise InvalidRequest(
                f"{source}: {name.removesuffix('_ms')}={value:g} is not allowed; each part of a "
                f"step takes 0 to {MOST_MS:,.0f} ms",
                param="step_cost",
            )
    _check_curve(cost.curve, source)
    step = 1000 * cost.seconds(1, 1, 1, reads=1)
    if not step >= LEAST_STEP_MS:
        raise InvalidRequest(
            f"{source}: a step of one token takes {step:g} ms; at least {LEAST_STEP_MS:g} ms are "
            "allowed",
            param="step_cost",
        )


def _check_curve(curve: tuple[tuple[int, float], ...], source: str) -> None:
    """Raises InvalidRequest."""
    if not curve:
        return
    rises = all(first[0] < second[0] and first[1] <= second[1] for first, second in pairwise(curve))
    bounded = all(tokens >= 1 and 0 <= value <= MOST_MS for tokens, value in curve)
    if not (1 < len(curve) <= MOST_POINTS and rises and bounded):
        raise InvalidRequest(
            f"{source}: curve has 2 to {MOST_POINTS} pairs of tokens, from 1 on and ascending, and "
            f"of milliseconds, 0 to {MOST_MS:,.0f}, which don't fall",
            param="step_cost",
        )


def parse(text: str) -> StepCost:
    """`base=5,token=0.1,sequence=0.05,context=0.0001,overhead=0.5`, in milliseconds, or a file that
    `penstock fit-cost` wrote. Raises InvalidRequest."""
    if "=" not in text:
        return _from_file(text)
    values = {}
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        try:
            values[f"{name.strip()}_ms"] = float(value)
        except ValueError:
            values["?"] = math.nan
    known = set(values) <= set(NUMBERS)
    if not known or not all(v == 0 or LEAST_MS <= v <= MOST_MS for v in values.values()):
        raise InvalidRequest(
            f"step cost {text[:80]!r}; it takes {NAMES}, each of them 0 or {LEAST_MS:g} to "
            f"{MOST_MS:,.0f} milliseconds, as in base=5,token=0.1"
        )
    return msgspec.convert({**dict.fromkeys(NUMBERS, 0.0), **values}, StepCost)


def _from_file(name: str) -> StepCost:
    return read_fitted(name).cost


def read_fitted(name: str) -> FittedCost:
    """A file that `penstock fit-cost` or `penstock bench steps` wrote. Raises InvalidRequest."""
    try:
        found = msgspec.json.decode(Path(name).read_bytes(), type=FittedCost)
    except OSError as error:
        raise InvalidRequest(f"step cost {name!r}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"step cost {name!r}: {error}") from None
    check_cost(found.cost, f"step cost {name!r}")
    return found


def extent(work: list[SlotWork]) -> tuple[int, int]:
    """(tokens, pairs) of a step's work. Token t of a sequence attends to t + 1 tokens."""
    tokens = pairs = 0
    for part in work:
        count = part.count
        tokens += count
        pairs += count * (2 * part.start + count + 1)
    return tokens, pairs // 2
