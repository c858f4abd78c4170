"""Runs sequences through a Decoder in given steps, on blocks scattered over its cache."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np

from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.decoder_step import NOTHING_GIVEN, DecoderStep, GivenRows

Work = list[tuple[int, int]]
"""One step: (number of a sequence, how many of its tokens), in the order of the batch."""


class Run:
    """logits: per sequence, of every position computed so far. [vocab] float32 each."""

    def __init__(
        self,
        decoder: Decoder,
        sequences: Sequence[list[int]],
        seed: int = 0,
        *,
        wants: Callable[[int], list[int]] = lambda count: list(range(count)),
    ) -> None:
        """`wants`: which of a step's rows, so many, the step gives; of others the logits are
        NaN."""
        self._wants = wants
        self.decoder = decoder
        self.sequences = sequences
        self.logits: list[list[np.ndarray]] = [[] for _ in sequences]
        self._blocks = list(range(decoder.num_blocks))
        random.Random(seed).shuffle(self._blocks)
        self.tables: list[list[int]] = [[] for _ in sequences]

    def steps(self, steps: Iterable[Work]) -> Run:
        for work in steps:
            self.step(work)
        return self

    def step(self, work: Work) -> None:
        starts = [len(self.logits[which]) for which, _ in work]
        tokens = []
        for (which, count), start in zip(work, starts, strict=True):
            tokens += self.sequences[which][start : start + count]
            table, size = self.tables[which], self.decoder.block_size
            while len(table) * size < start + count:
                table.append(self._blocks.pop())
        tables = [self.tables[which] for which, _ in work]
        step = DecoderStep(
            tokens=_int32(tokens),
            first_row=_int32(np.cumsum([0, *(count for _, count in work)])),
            starts=_int32(starts),
            tables=_int32(chain.from_iterable(tables)),
            first_block=_int32(np.cumsum([0, *map(len, tables)])[:-1]),
            given=self._given(work, starts),
        )
        wanted = self._wants(len(tokens))
        found = self.decoder.logits(step, _int32(wanted))
        logits = np.full((len(tokens), found.shape[1]), np.nan, dtype=np.float32)
        logits[wanted] = found
        rows = iter(logits)
        for which, count in work:
            self.logits[which] += [next(rows) for _ in range(count)]

    def _given(self, work: Work, starts: list[int]) -> GivenRows:
        """What the step has of its rows besides their tokens."""
        return NOTHING_GIVEN

    def of(self, which: int) -> np.ndarray:
        return np.array(self.logits[which])

    def free(self, which: int) -> None:
        """Its blocks are the next to be given out; what they hold stays as it is."""
        self._blocks += self.tables[which]
        self.tables[which], self.logits[which] = [], []


def _int32(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), dtype=np.int32)


def chunks(which: int, length: int, size: int) -> list[Work]:
    """One sequence alone, `size` tokens a step."""
    return [[(which, min(size, length - start))] for start in range(0, length, size)]


def random_steps(lengths: Sequence[int], seed: int, *, largest: int = 40) -> list[Work]:
    """All sequences to their ends: some of them in each step, in any order, in chunks of any size,
    most of them of one token."""
    choose = random.Random(seed)
    left = dict(enumerate(lengths))
    steps = []
    while left:
        chosen = choose.sample(sorted(left), choose.randint(1, len(left)))
        work = []
        for which in chosen:
            most = 1 if choose.random() < 0.5 else largest
            count = min(left[which], choose.randint(1, most))
            work.append((which, count))
            left[which] -= count
            if not left[which]:
                del left[which]
        steps.append(work)
    return steps


def random_tokens(vocab: int, length: int, seed: int) -> list[int]:
    choose = random.Random(seed)
    return [choose.randrange(vocab) for _ in range(length)]
