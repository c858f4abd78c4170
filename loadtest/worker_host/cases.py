"""The decodes that are measured, and their plans."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork

BLOCK, CONTEXT, VOCAB = 16, 1000, 32_768
BATCHES = (1, 8, 64, 256)
KINDS = ("greedy", "sampled", "adjusted")
ENDING = 8
"""Sequences that end at each step, and as many that come, where the case has it."""


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


def blocks_of(case: Case) -> int:
    """KV blocks that its plans need."""
    return (case.sequences + 1) * (2 * CONTEXT // BLOCK)


def plans(case: Case) -> Iterator[bytes]:
    """Encoded plans, in each of which every slot computes one token.  A sequence comes with all but
    its last token's keys and values in the cache, so that every step is a decode."""
    rng, encode = random.Random(0), msgspec.msgpack.Encoder().encode
    free = deque(rng.sample(range(blocks_of(case)), blocks_of(case)))
    blocks: dict[int, list[int]] = {}
    computed: dict[int, int] = {}

    def admit(slot: int) -> NewSequence:
        length = CONTEXT + rng.randrange(BLOCK)
        tokens = rng.choices(range(VOCAB), k=length)
        blocks[slot] = [free.popleft() for _ in range(-(-length // BLOCK))]
        computed[slot] = length - 1
        held = list(blocks[slot])
        return NewSequence(slot, tokens, length, 0, sampling(case.kind, slot), held)

    def work(slot: int) -> SlotWork:
        start = computed[slot]
        computed[slot] += 1
        new = [free.popleft()] if start >= len(blocks[slot]) * BLOCK else []
        blocks[slot] += new
        return SlotWork(slot, start, 1, new)

    slots = list(range(case.sequences))
    yield encode(Plan(1, 0, [], [admit(slot) for slot in slots], [work(slot) for slot in slots]))
    for step in range(2, CONTEXT):
        ending = [slots[(step * case.ending + n) % len(slots)] for n in range(case.ending)]
        for slot in ending:
            free.extend(blocks[slot])
        admitted = [admit(slot) for slot in ending]
        yield encode(Plan(step, step - 1, ending, admitted, [work(slot) for slot in slots]))
