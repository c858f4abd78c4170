"""The decodes that are measured, and their plans."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork

BLOCK, CONTEXT, VOCAB = 16, 1000, 32_768
BATCHES = (1, 8, 64, 256)
KINDS = ("greedy", "sampled", "adjusted")
ENDING = 8
"""Sequences that end at each step, and as many that come, where the case has it."""
IN_FLIGHT = 2


@dataclass(frozen=True)
class Case:
    sequences: int
    kind: str  # how tokens are chosen
    ending: int = 0  # sequences that end at each step, to be replaced

    @property
    def name(self) -> str:
        change = f", {self.ending} end and come" if self.ending else ""
        return f"{self.sequences} {self.kind}{change}"


def cases() -> list[Case]:
    steady = [Case(batch, kind) for batch in BATCHES for kind in KINDS]
    return [*steady, Case(64, "sampled", ENDING), Case(256, "sampled", ENDING)]


def sampling(kind: str, seed: int) -> TokenSampling:
    if kind == "greedy":
        return TokenSampling(seed, temperature=0.0)
    if kind == "sampled":
        return TokenSampling(seed, temperature=0.7, top_p=0.9)
    adjusted = LogitsAdjustments(presence=0.3, frequency=0.2, repetition=1.1)
    return TokenSampling(seed, temperature=0.7, top_p=0.9, logprobs=5, adjustments=adjusted)


@dataclass
class Plans:
    """Plans of a case without end, encoded: each slot computes one token in each.  A sequence comes
    with all but its last token's keys and values in the cache, so that every step is a decode."""

    case: Case
    _random: random.Random = field(default_factory=lambda: random.Random(0))
    _computed: dict[int, int] = field(default_factory=dict)
    _blocks: dict[int, list[int]] = field(default_factory=dict)
    _free: deque[int] = field(default_factory=deque)

    @property
    def blocks(self) -> int:
        return (self.case.sequences + 1) * (2 * CONTEXT // BLOCK)

    def __iter__(self) -> Iterator[bytes]:
        case, encode = self.case, msgspec.msgpack.Encoder().encode
        self._free.extend(self._random.sample(range(self.blocks), self.blocks))
        slots = list(range(case.sequences))
        for step in range(1, CONTEXT):
            gone = [slots[(step * case.ending + n) % len(slots)] for n in range(case.ending)]
            fresh = slots if step == 1 else gone
            released = [] if step == 1 else gone
            for slot in released:
                self._free.extend(self._blocks[slot])
            admitted = [self._admitted(slot) for slot in fresh]
            works = [self._work(slot, grow=slot not in fresh) for slot in slots]
            yield encode(Plan(step, step - 1, released, admitted, works))

    def _admitted(self, slot: int) -> NewSequence:
        length = CONTEXT + self._random.randrange(BLOCK)
        tokens = self._random.choices(range(VOCAB), k=length)
        self._blocks[slot] = [self._free.popleft() for _ in range(-(-length // BLOCK))]
        self._computed[slot] = length - 1
        held = list(self._blocks[slot])
        return NewSequence(slot, tokens, length, 0, sampling(self.case.kind, slot), held)

    def _work(self, slot: int, grow: bool) -> SlotWork:
        start = self._computed[slot]
        self._computed[slot] += 1
        new = []
        if grow and start >= len(self._blocks[slot]) * BLOCK:
            new = [self._free.popleft()]
            self._blocks[slot] += new
        return SlotWork(slot, start, 1, new)
