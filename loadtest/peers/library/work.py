"""The pieces of work: the same token ids for every system."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from loadtest.peers.peer import Workload
from loadtest.roofline.cost import ModelCost
from loadtest.roofline.probe import Limits

Figure = Literal["decode", "output", "prefill"]
"""decode: tokens after the first, over the time after the first.  output: output tokens over the
whole call.  prefill: prompt tokens over the whole call."""

_TOKEN_IDS = range(1000, 40_000)
WARM_TOKENS = 4


@dataclass(frozen=True)
class Run:
    """What a runner says about one call."""

    seconds: float
    tokens: list[list[int]]  # that each prompt has got
    decode_s: float | None = None
    """Seconds from the first token to the last; None where the system doesn't tell, or has several
    prompts."""

    @property
    def output_tokens(self) -> list[int]:
        """How many each prompt has got."""
        return [len(each) for each in self.tokens]

    def fault(self, outputs: int, tokens: int, *, timed: bool) -> str | None:
        """What makes it no result: other outputs than so many of so many tokens each, or no time
        between the first and the last token where that is wanted."""
        if self.output_tokens != [tokens] * outputs:
            counts = sorted(set(self.output_tokens))
            return f"{len(self.tokens)} outputs of {counts} tokens instead of {outputs} of {tokens}"
        return "no time between first and last token" if timed and not self.decode_s else None


Call = Callable[[list[list[int]], int], Run]
"""A system's call: takes prompts, and how many tokens each gets."""


@dataclass(frozen=True)
class Work(Workload):
    """`streams` prompts in one call."""

    name: str
    figure: Figure
    streams: int
    input_tokens: int
    output_tokens: int
    patience: float
    """Seconds; a system that needs more for it does it once, not in every round."""
    warm_streams: int  # prompts of the warm-up's call
    target: float | None = None  # least ratio to the best peer's figure
    history: int = 0  # tokens before the prompt that are in the cache

    def prompts(self, seed: str, streams: int | None = None) -> list[list[int]]:
        """Random token ids; another seed's share no prefix, so that no cache helps."""
        rng = random.Random(f"{self.name}/{seed}")
        count = self.streams if streams is None else streams
        return [rng.choices(_TOKEN_IDS, k=self.input_tokens) for _ in range(count)]

    def perform(self, call: Call, seed: str) -> Run:
        return call(self.prompts(seed), self.output_tokens)

    def warm_up(self, call: Call) -> None:
        call(self.prompts("warm-up", self.warm_streams), min(self.output_tokens, WARM_TOKENS))

    @property
    def at_once(self) -> bool:
        return self.streams > 1 and self.figure != "prefill"

    def too_slow(self, run: Run) -> bool:
        return run.seconds > self.patience

    def fault(self, run: Run) -> str | None:
        return run.fault(self.streams, self.output_tokens, timed=self.figure == "decode")

    def rate(self, run: Run) -> float:
        """Tokens per second, of a run without fault."""
        if self.figure == "decode" and run.decode_s:
            return (self.output_tokens - 1) / run.decode_s
        return self._counted / run.seconds

    def limit(self, cost: ModelCost, limits: Limits) -> float | None:
        """The rate that the machine's memory and integer units allow at most; None where that of
        the integer units is not known and counts."""
        steps = self.output_tokens - 1
        context = self.history + self.input_tokens + self.output_tokens / 2
        decode = steps * cost.decode_seconds(context, self.streams, limits)
        if self.figure == "decode":
            return steps / decode
        tokens = self.streams * self.input_tokens
        prefill = cost.prefill_seconds(tokens, self.streams, limits)
        return None if prefill is None else self._counted / (prefill + decode)

    @property
    def _counted(self) -> int:
        counted = self.input_tokens if self.figure == "prefill" else self.output_tokens
        return self.streams * counted


WORK = (
    Work("decode, 1 stream, 32 in, 128 out", "decode", 1, 32, 128, 20, 1, target=2.5),
    Work("decode, 1 stream at 1,024 context, 64 out", "decode", 1, 1024, 64, 20, 1),
    Work("8 streams, 32 in, 128 out", "output", 8, 32, 128, 20, 8, target=2.0),
    Work("64 streams, 128 in, 128 out", "output", 64, 128, 128, 20, 64, target=2.0),
    Work("prefill, 8 × 1,024 tokens", "prefill", 8, 1024, 1, 25, 1, target=1.5),
)
SMOKE_WORK = (
    Work("decode, 1 stream, 8 in, 8 out", "decode", 1, 8, 8, 20, 1, target=2.5),
    Work("3 streams, 8 in, 8 out", "output", 3, 8, 8, 20, 3, target=2.0),
    Work("prefill, 2 × 64 tokens", "prefill", 2, 64, 1, 20, 1, target=1.5),
)
