"""The pieces of work: calls with real texts."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from loadtest.machine.texts import FOLLOW_UPS, KINDS, Texts
from loadtest.peers.library.work import WARM_TOKENS, Call, Figure, Run, Work
from loadtest.peers.peer import Workload
from loadtest.roofline.cost import ModelCost
from loadtest.roofline.probe import Limits

_WARM = 512
"""Tokens of all prompts of a warm-up, at most."""


@dataclass(frozen=True, kw_only=True)
class Task(Workload):
    """`streams` prompts in one call, of `kinds` in turn.

    key: what the command line calls it.  figures: rows of the page that a call gives.
    """

    key: str
    name: str
    figures: Mapping[str, Figure]
    streams: int
    input_tokens: int
    output_tokens: int
    kinds: tuple[str, ...] = KINDS
    texts: Texts = field(repr=False)
    warms: bool = True  # whether none before has as many streams

    @property
    def outputs(self) -> int:
        """The number of outputs of a run."""
        return self.streams

    def works(self) -> list[Work]:
        """Each row's name, rate and limit."""
        return [self.work(name, figure) for name, figure in self.figures.items()]

    def work(self, name: str, figure: Figure) -> Work:
        outputs = 1 if figure == "prefill" else self.output_tokens
        return Work(name, figure, self.streams, self.input_tokens, outputs, 0, 0)

    def prompts(self, seed: str) -> list[list[int]]:
        rng = random.Random(f"{self.name}/{seed}")
        kinds = (self.kinds[number % len(self.kinds)] for number in range(self.streams))
        return [self.texts.prompt(kind, self.input_tokens, rng) for kind in kinds]

    def perform(self, call: Call, seed: str) -> Run:
        return call(self.prompts(seed), self.output_tokens)

    def warm_up(self, call: Call) -> None:
        """A short one of as many streams: kernels are chosen, and memory for them is touched."""
        if not self.warms:
            return
        most = min(_WARM // self.streams, 64)
        prompts = [each[-most:] for each in self.prompts("warm-up")]
        call(prompts, min(self.output_tokens, WARM_TOKENS))

    def fault(self, run: Run) -> str | None:
        timed = "decode" in self.figures.values()
        return run.fault(self.outputs, self.output_tokens, timed=timed)

    def rates(self, run: Run) -> dict[str, float]:
        """Tokens per second, by row."""
        return {work.name: work.rate(_part(work, run)) for work in self.works()}

    def seconds(self, cost: ModelCost, limits: Limits) -> float:
        """What a run takes at the machine's limits."""
        return _seconds(
            cost, limits, self.streams, self.input_tokens, self.input_tokens, self.output_tokens
        )


@dataclass(frozen=True, kw_only=True)
class Chat(Task):
    """`turns` questions, each behind all that was said before.

    input_tokens: of what was said before the first; the clock starts when that has been read.
    """

    turns: int

    @property
    def outputs(self) -> int:
        return self.turns

    def work(self, name: str, figure: Figure) -> Work:
        asked, outputs = self._asked(), self.turns * self.output_tokens
        return Work(name, figure, 1, asked, outputs, 0, 0, history=self.input_tokens)

    def perform(self, call: Call, seed: str) -> Run:
        said = self.prompts(seed)[0]
        answer = call([said], 1)
        tokens, seconds = [], 0.0
        for turn in range(self.turns):
            said = [*said, *answer.tokens[0], *self.texts.follow_up(turn)]
            answer = call([said], self.output_tokens)
            tokens.append(answer.tokens[0])
            seconds += answer.seconds
        return Run(seconds, tokens)

    def seconds(self, cost: ModelCost, limits: Limits) -> float:
        asked, outputs = self._asked(), self.turns * self.output_tokens
        read = self.input_tokens + asked
        return _seconds(cost, limits, 1, read, self.input_tokens + asked, outputs)

    def _asked(self) -> int:
        return sum(len(self.texts.follow_up(turn)) for turn in range(self.turns))


def _part(work: Work, run: Run) -> Run:
    """Returns the run up to its first token, where that is asked for and the run has more."""
    if work.figure == "prefill" and run.decode_s:
        return Run(run.seconds - run.decode_s, run.tokens)
    return run


def _seconds(
    cost: ModelCost, limits: Limits, streams: int, read: int, context: int, outputs: int
) -> float:
    """read: tokens of each stream's prompt.  context: where its output begins."""
    reading = cost.prefill_seconds(streams * read, streams, limits) or 0.0
    return reading + outputs * cost.decode_seconds(context + outputs / 2, streams, limits)


class Sizes(Enum):
    """The divisor of numbers of tokens and streams."""

    FULL = 1
    SMALL = 16


WORKS = ("stream", "context", "streams8", "streams64", "prompts", "chat")


def tasks(texts: Texts, sizes: Sizes = Sizes.FULL, keys: Collection[str] = WORKS) -> list[Task]:
    """keys: of WORKS, of which the others are left out."""

    def task(
        key: str,
        figures: Mapping[str, Figure],
        streams: int,
        tokens: int,
        outputs: int,
        *kinds: str,
    ) -> Task:
        return Task(
            key=key,
            name=next(iter(figures)),
            figures=figures,
            streams=-(-streams // sizes.value),
            input_tokens=-(-tokens // sizes.value),
            output_tokens=min(outputs, max(-(-outputs // sizes.value), 5)),
            kinds=kinds or KINDS,
            texts=texts,
        )

    chat = Chat(
        key="chat",
        name="chat, 5 turns after 2,048 tokens, 64 out each",
        figures={"chat, 5 turns after 2,048 tokens, 64 out each": "output"},
        streams=1,
        input_tokens=2048 // sizes.value,
        output_tokens=max(64 // sizes.value, 5),
        kinds=("chat",),
        texts=texts,
        turns=len(FOLLOW_UPS),
    )
    context: dict[str, Figure] = {
        "1 stream at 4,096 context, 64 out": "decode",
        "prefill, 1 × 4,096": "prefill",
    }
    found: list[Task] = [
        *(
            task("stream", {f"1 stream, {kind}, 64 in, 128 out": "decode"}, 1, 64, 128, kind)
            for kind in KINDS
        ),
        task("context", context, 1, 4096, 64, "code"),
        task("streams8", {"8 streams, 64 in, 64 out": "output"}, 8, 64, 64),
        task("streams64", {"64 streams, 64 in, 64 out": "output"}, 64, 64, 64),
        task("prompts", {"prefill, 8 × 1,024": "prefill"}, 8, 1024, 1),
        chat,
    ]
    chosen = [each for each in found if each.key in keys]
    counts = [each.streams for each in chosen]
    return [
        replace(each, warms=each.streams not in counts[:number])
        for number, each in enumerate(chosen)
    ]
