"""The decodes that are measured, and their plans."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork

BLOCK, CONTEXT, VOCAB = 16, 1000, 32_768
BATCHES = (1, 8, 64, 256)
KINDS = ("greedy", "sampled", "adjusted")
LONGEST = 8 * CONTEXT
"""Tokens that a sequence may have."""
CHUNKS = (64, 448)
"""Of mixed steps: up to 512 rows these are CUDA graphs too."""
ENDING = 8
"""Sequences that end at each step, and as many that come, where the case has it."""


@dataclass(frozen=True)
class Case:
    sequences: int
    kind: str  # how tokens are chosen
    ending: int = 0  # sequences that end at each step, to be replaced
    chunk: int = 0  # tokens of a prompt in each step, beside the decodes

    @property
    def name(self) -> str:
        change = f", {self.ending} end and come" if self.ending else ""
        chunk = f", beside {self.chunk} of a prompt" if self.chunk else ""
        return f"{self.sequences} {self.kind}{change}{chunk}"

    @property
    def slots(self) -> int:
        """That it needs."""
        return self.sequences + (self.chunk > 0)


def cases() -> list[Case]:
    steady = [Case(batch, kind) for batch in BATCHES for kind in KINDS]
    changing = [Case(64, "sampled", ENDING), Case(256, "sampled", ENDING)]
    return [*steady, *changing, *(Case(64, "sampled", chunk=chunk) for chunk in CHUNKS)]


def sampling(kind: str, seed: int) -> TokenSampling:
    if kind == "greedy":
        return TokenSampling(seed, temperature=0.0)
    if kind == "sampled":
        return TokenSampling(seed, temperature=0.7, top_p=0.9)
    adjusted = LogitsAdjustments(presence=0.3, frequency=0.2, repetition=1.1)
    return TokenSampling(seed, temperature=0.7, top_p=0.9, logprobs=5, adjustments=adjusted)


def blocks_of(case: Case) -> int:
    """KV blocks that its plans need."""
    prompts = 2 * LONGEST // BLOCK if case.chunk else 0
    return (case.sequences + 1) * (2 * CONTEXT // BLOCK) + prompts


def plans(case: Case) -> Iterator[bytes]:
    """Encoded plans, in each of which every slot computes one token.  A sequence comes with all but
    its last token's keys and values in the cache, so that every step is a decode.  Of a prompt in
    the last slot, each step computes a chunk; when it is whole, another one takes its place."""
    encode = msgspec.msgpack.Encoder().encode
    slots, sequences = list(range(case.sequences)), _Sequences(case)
    for step in range(1, CONTEXT):
        ending = [slots[(step * case.ending + n) % len(slots)] for n in range(case.ending)]
        coming = slots if step == 1 else ending
        if case.chunk and sequences.prompt_is_whole:
            coming = [*coming, case.sequences]
        ended = sequences.end(coming)
        admitted = [sequences.admit(slot) for slot in coming]
        work = [sequences.work(slot) for slot in range(case.slots)]
        yield encode(Plan(step, step - 1, ended, admitted, work))


class _Sequences:
    """Those that run, and their blocks."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._random = random.Random(0)
        count = blocks_of(case)
        self._free = deque(self._random.sample(range(count), count))
        self._blocks: dict[int, list[int]] = {}
        self._computed: dict[int, int] = {}

    @property
    def prompt_is_whole(self) -> bool:
        """Or there has been none yet."""
        chunk = self._case.chunk
        return self._computed.get(self._case.sequences, LONGEST) + chunk > LONGEST

    def end(self, slots: Iterable[int]) -> list[int]:
        """Frees what these slots have; returns those that have anything."""
        ended = [slot for slot in slots if slot in self._blocks]
        for slot in ended:
            self._free.extend(self._blocks.pop(slot))
        return ended

    def admit(self, slot: int) -> NewSequence:
        if slot < self._case.sequences:
            length = CONTEXT + self._random.randrange(BLOCK)
            computed = length - 1
        else:
            length, computed = LONGEST // self._case.chunk * self._case.chunk, 0
        tokens = self._random.choices(range(VOCAB), k=length)
        held = [self._free.popleft() for _ in range(-(-length // BLOCK))]
        self._blocks[slot], self._computed[slot] = held, computed
        drawn = sampling(self._case.kind, slot)
        return NewSequence(slot, tokens, length, 0, drawn, list(held))

    def work(self, slot: int) -> SlotWork:
        count = 1 if slot < self._case.sequences else self._case.chunk
        start = self._computed[slot]
        self._computed[slot] += count
        held = self._blocks[slot]
        new = [self._free.popleft()] if start >= len(held) * BLOCK else []
        held += new
        return SlotWork(slot, start, count, new)
