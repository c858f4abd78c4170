"""Models with recurrent layers, over a KV cache and states in plain memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
import torch

from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_kernels.reference.tiling import padded_rows
from penstock_worker.attention.interface import BatchLayout, CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.batch.logits import in_torch
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Batch
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.states.live_states import LiveStates
from tests.worker.cpu_model import CPUModel
from tests.worker.recurrent_states import StatesInMemory

BLOCK = 16
EACH = 16
"""Blocks of a sequence."""


class Run(Protocol):
    """Some sequences' tokens, step by step."""

    def step(self, work: Sequence[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
        """Computes the next tokens of some sequences, (sequence, tokens). Returns the logits of
        each, [tokens, vocab] float32."""


class RecurrentRun:
    """A Run by the reference."""

    def __init__(self, model: DecoderModel, sequences: int) -> None:
        self._model = model
        shape = CacheShape.of(model.config, BLOCK, model.dtype)
        self._attention = ReferenceAttention(shape, sequences * EACH)
        self.states = StatesInMemory(model.config)
        self._lengths = Counter[int]()

    def step(self, work: Sequence[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
        counts = [len(tokens) for _, tokens in work]
        layout = BatchLayout(
            [np.arange(EACH) + sequence * EACH for sequence, _ in work],
            np.array([self._lengths[sequence] for sequence, _ in work]),
            np.array(counts),
        )
        rows = sum(counts)
        padding = (0, padded_rows(rows) - rows)
        tokens = np.concatenate([np.asarray(tokens) for _, tokens in work])
        states = self.states.step([(sequence, len(tokens)) for sequence, tokens in work])
        with torch.inference_mode():
            hidden = self._model.hidden(
                torch.from_numpy(np.pad(tokens, padding)),
                torch.from_numpy(np.pad(layout.positions, padding)),
                self._attention.plan(layout),
                lambda: None,
                states,
            )
            logits = self._model.logits(hidden[:rows])
        self._lengths.update({sequence: len(tokens) for sequence, tokens in work})
        return list(logits.split(counts))


class CPURun:
    """A Run by the CPU kernels or by CUDA's, with checkpoints behind each `every` tokens."""

    def __init__(
        self,
        model: CPUModel,
        sequences: int,
        *,
        threads: int = 1,
        every: int = EACH * BLOCK,
        ranks: Ranks = ALONE,
    ) -> None:
        setup = model.setup(block_size=BLOCK, threads=threads)
        setup = msgspec.structs.replace(setup, state_checkpoint_tokens=every)
        setup = msgspec.structs.replace(setup, batch_invariant=model.backend == "triton")
        recipe = choose(model.prepared(), setup, threads, ranks)
        assert isinstance(recipe.states, LiveStates)
        checkpoints = recipe.kv_groups[-1].blocks * (EACH * BLOCK // every)
        num_blocks = sequences * (EACH * model.groups + checkpoints)
        blocks = iter(range(num_blocks))
        self.states = recipe.states
        self._tables = [
            [np.array([next(blocks) for _ in range(EACH)]) for _ in range(sequences)]
            for _ in range(model.groups)
        ]
        self.checkpoints = [[next(blocks) for _ in range(checkpoints)] for _ in range(sequences)]
        with torch.inference_mode():
            self.forward = recipe.build()(num_blocks)
        self._lengths = Counter[int]()

    def step(self, work: Sequence[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
        counts = [len(tokens) for _, tokens in work]
        slots = [sequence for sequence, _ in work]
        starts = [self._lengths[sequence] for sequence in slots]
        self._take(slots, starts, counts)
        first, *more = ([tables[sequence] for sequence in slots] for tables in self._tables)
        tokens = np.concatenate([np.asarray(tokens) for _, tokens in work])
        batch = Batch(tokens, first, np.array(starts), np.array(counts), tuple(more), slots)
        with torch.inference_mode():
            logits = in_torch(self.forward.logits(batch, np.arange(len(tokens))))
        self._lengths.update({sequence: len(tokens) for sequence, tokens in work})
        return list(logits.split(counts))

    def _take(self, slots: list[int], starts: list[int], counts: list[int]) -> None:
        greedy = TokenSampling(0, temperature=0.0)
        admitted = [
            NewSequence(slot, [1], 1, 0, greedy, [], states=self.checkpoints[slot])
            for slot, start in zip(slots, starts, strict=True)
            if not start
        ]
        work = [SlotWork(*each) for each in zip(slots, starts, counts, strict=True)]
        self.states.take(Plan(1, 0, [], admitted, work, []))


def run_of(model: DecoderModel | CPUModel, sequences: int) -> Run:
    if isinstance(model, CPUModel):
        return CPURun(model, sequences)
    return RecurrentRun(model, sequences)


def greedy(
    model: DecoderModel | CPUModel, prompts: Sequence[Sequence[int]], wanted: int
) -> list[tuple[list[int], torch.Tensor]]:
    """Each prompt's tokens, all prompts in one batch, and every computed position's logits."""
    run = run_of(model, len(prompts))
    found = run.step(list(enumerate(prompts)))
    answers = [[int(logits[-1].argmax())] for logits in found]
    for _ in range(wanted - 1):
        more = run.step([(at, answer[-1:]) for at, answer in enumerate(answers)])
        for at, logits in enumerate(more):
            answers[at].append(int(logits[-1].argmax()))
            found[at] = torch.cat((found[at], logits))
    return list(zip(answers, found, strict=True))
