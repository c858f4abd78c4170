"""Several steps that are alike but for the context that grows: how long they take."""

from __future__ import annotations

import math

import msgspec

from penstock_engine.policies.pace import LEAST, LONG
from penstock_planning.simulate.cost import StepCost

_NEARLY = 1e-9


class Stretch(msgspec.Struct, frozen=True):
    """Seconds of `steps` steps, the first of which takes `first`, each further one `growth` more.

    chunk: tokens of prompts in each step, in addition to one for each decoding sequence.
    """

    steps: int
    first: float
    growth: float
    chunk: int

    def seconds(self, steps: int) -> float:
        """Returns how many seconds the first `steps` of them take."""
        return steps * self.first + self.growth * steps * (steps - 1) / 2

    def whole_steps(self, seconds: float) -> int:
        """How many of them are over after so many seconds."""
        if self.growth <= 0:
            done = seconds / self.first
        else:
            middle = self.first - self.growth / 2
            done = (math.sqrt(middle * middle + 2 * self.growth * seconds) - middle) / self.growth
        return min(self.steps, int(done + _NEARLY))


class StretchPace(msgspec.Struct, frozen=True):
    """What a step may hold, as StepPace would find it once it knows the costs: with decodes, a step
    with prompts takes `short` seconds or `slowdown` times the decodes alone, and 0.25 s without.

    tokens: the budget of a step.
    """

    cost: StepCost
    tokens: int
    slowdown: float
    short: float

    def chunk(self, decodes: int, context: int, start: int) -> int:
        """Returns how many tokens of a prompt a step may hold in addition to so many decodes.
        context: tokens whose KV the decodes read.  start: tokens of the prompt that are there."""
        most = max(1, self.tokens - decodes)
        if not self.slowdown:
            return most
        limit = LONG
        if decodes:
            alone = self.cost.seconds(decodes, decodes, context, reads=context)
            limit = max(self.short, self.slowdown * alone)
        least, found = min(LEAST, most), most
        if self.seconds(decodes, context, start, found) <= limit:
            return found
        while least < found:
            middle = (least + found + 1) // 2
            if self.seconds(decodes, context, start, middle) <= limit:
                least = middle
            else:
                found = middle - 1
        return least

    def seconds(self, decodes: int, context: int, start: int, chunk: int) -> float:
        """Returns how many seconds a step takes."""
        pairs = context + chunk * start + chunk * (chunk + 1) // 2
        reads = context + (start + chunk if chunk else 0)
        sequences = decodes + (1 if chunk else 0)
        return self.cost.seconds(decodes + chunk, sequences, pairs, reads=reads)

    def stretch(self, decodes: int, context: int, start: int, chunk: int, steps: int) -> Stretch:
        """So many steps: each further one has `decodes` tokens more to read, and the prompt's chunk
        more."""
        first = self.seconds(decodes, context, start, chunk)
        growth = 0.0
        if steps > 1:
            later = self.seconds(decodes, context + decodes, start + chunk, chunk)
            growth = later - first
        return Stretch(steps, first, growth, chunk)
