"""A StepRunner over a toy model of recurrent layers alone, with states in KV blocks that are plain
arrays, and the plans of a few sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.model.kv_layout import FULL, KVGroup
from penstock.protocol.common import TokenSampling
from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_kernels.cpu.recurrent import StateMoves
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.device.queue import HostQueue
from penstock_worker.forward.interface import Batch
from penstock_worker.sampler import choose
from penstock_worker.sampler.interface import HostSampler
from penstock_worker.speculation.drafting import Drafting, Proposer
from penstock_worker.states.program_states import ProgramStates
from penstock_worker.states.slot_states import SlotStates
from penstock_worker.states.snapshots import num_snapshots
from penstock_worker.steps.generate import Generate
from penstock_worker.steps.runner import ShareThreads, StepRunner

SIZE, EVERY, VOCAB, SLOTS = 4, 8, 50, 6
SIZES = (5, 0, 7)
"""Numbers of the layers' states; the second layer has none."""
WIDTHS = (13, 9, 2)
"""Bytes of a block in the cache's views: 24, so that 12 numbers take two blocks."""
GROUP = KVGroup(every=EVERY, blocks=2)
GREEDY = TokenSampling(0, temperature=0.0)


def mixer(layer: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A scan whose order of sums is seen in its bits."""

    def scan(features: Tensor, state: Tensor) -> Tensor:
        found = []
        for row in features:
            state.mul_(0.7).add_(torch.roll(state, 1) * 0.3 + row[: len(state)] + 0.1 * layer)
            found.append(state.sum() * torch.arange(1.0, VOCAB + 1.0))
        return torch.stack(found)

    return scan


def true_logits(tokens: list[int]) -> Tensor:
    """Logits of each token, computed at once and by itself."""
    rows = features_of(np.array(tokens))
    for layer in (0, 2):
        rows = rows + torch.sin(mixer(layer)(rows, torch.zeros(SIZES[layer])))
    return rows


def features_of(tokens: np.ndarray) -> Tensor:
    at = torch.from_numpy(tokens).float()[:, None]
    return torch.sin(at * torch.arange(1.0, VOCAB + 1.0))


class ToyForward:
    """Fails when `fails` says so: (layer, the batch) -> whether."""

    def __init__(self, states: SlotStates, parts: list[np.ndarray]) -> None:
        self.states, self.parts = states, parts
        self.layers_done = 0
        self.fails: Callable[[int, Batch], bool] = lambda layer, batch: False
        self.in_scan: Callable[[int, Tensor], bool] = lambda layer, rows: False
        self.batches: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.logits_of: dict[tuple[int, int], Tensor] = {}
        """Logits by slot and position."""

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        self.batches.append((tuple(batch.starts.tolist()), tuple(batch.counts.tolist())))
        step = self.states.step(batch)
        hidden = torch.cat((features_of(batch.tokens), torch.ones(3, VOCAB)))  # padded
        for layer in (0, 2):
            if self.fails(layer, batch):
                raise RuntimeError("this layer fails")
            mixed = step.scan(layer, hidden, self._scan(layer))
            assert not mixed[len(batch.tokens) :].any()
            hidden = hidden + torch.sin(mixed)
        at = 0
        for slot, start, count in zip(batch.slots, batch.starts, batch.counts, strict=True):
            for offset in range(count):
                self.logits_of[slot, int(start) + offset] = hidden[at].clone()
                at += 1
        return hidden[torch.from_numpy(rows)]

    def _scan(self, layer: int) -> Callable[[Tensor, Tensor], Tensor]:
        def scan(features: Tensor, state: Tensor) -> Tensor:
            if self.in_scan(layer, features):
                state.fill_(float("nan"))
                raise RuntimeError("this scan fails")
            return mixer(layer)(features, state)

        return scan

    def kv_blocks(self) -> list[np.ndarray]:
        return self.parts

    def cancel(self) -> None:
        raise AssertionError("nobody stops")


class ToyProgram(ToyForward):
    """The toy model as a program of the CPU kernels computes it: what becomes of states is known
    before anything is computed, and fails then."""

    states: ProgramStates

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        self.batches.append((tuple(batch.starts.tolist()), tuple(batch.counts.tolist())))
        hidden = features_of(batch.tokens)
        with self.states.moved_on(batch) as step:
            if any(self.fails(layer, batch) for layer in (0, 2)):
                raise RuntimeError("the step fails")
            for layer, first in ((0, 0), (2, SIZES[0])):
                own = slice(first, first + SIZES[layer])
                results = slice(layer // 2 * VOCAB, layer // 2 * VOCAB + VOCAB)
                hidden = hidden + torch.sin(self._moved(step, batch, hidden, layer, own, results))
        at = 0
        for slot, start, count in zip(batch.slots, batch.starts, batch.counts, strict=True):
            for offset in range(count):
                self.logits_of[slot, int(start) + offset] = hidden[at].clone()
                at += 1
        return hidden[torch.from_numpy(rows)]

    def _moved(
        self,
        step: StateMoves,
        batch: Batch,
        hidden: Tensor,
        layer: int,
        own: slice,
        results: slice,
    ) -> Tensor:
        """What a layer's scan gives, whose numbers of a slot are `own` and `results`."""
        found, row = [], 0
        for number, (slot, count) in enumerate(zip(step.slots, batch.counts, strict=True)):
            state = torch.from_numpy(step.memory.live[slot])[own]
            last = torch.from_numpy(step.memory.last[slot])[results]
            kept = range(*step.first_checkpoint[number : number + 2])
            for each in range(row, row + count):
                if not step.again[number]:
                    last.copy_(mixer(layer)(hidden[each : each + 1], state)[0])
                found.append(last.clone())
                for checkpoint in kept:
                    if step.behind[checkpoint] == each:
                        self._keep(step.blocks[checkpoint], own, state)
            row += int(count)
        return torch.stack(found)

    def _keep(self, blocks: np.ndarray, own: slice, state: Tensor) -> None:
        stored = np.concatenate([part[block] for block in blocks for part in self.parts])
        stored.view(np.float32)[own] = state.numpy()
        cuts = np.cumsum(WIDTHS * len(blocks))[:-1]
        for number, values in enumerate(np.split(stored, cuts)):
            self.parts[number % len(WIDTHS)][blocks[number // len(WIDTHS)]] = values


class Toy:
    """Sequences with tables of blocks as they like. program: all layers are computed in one
    call. oracle: proposes up to 3 tokens."""

    def __init__(
        self, threads: int = 1, *, program: bool = False, oracle: Proposer | None = None
    ) -> None:
        snapshots = 0 if oracle is None else num_snapshots(3, SLOTS, 4 * sum(SIZES))
        parts = [np.full((64, width), 255, np.uint8) for width in WIDTHS]
        self.forward: ToyForward
        if program:
            states = ProgramStates(SIZES, GROUP, SLOTS, 2 * VOCAB, snapshots)
            self.states: SlotStates = states
            self.forward = ToyProgram(states, parts)
        else:
            self.states = SlotStates(SIZES, GROUP, SLOTS, snapshots=snapshots)
            self.forward = ToyForward(self.states, parts)
        self.states.allocate(parts)
        slots = Slots(SlotBounds(SLOTS, 64, SIZE, VOCAB, 100, (FULL,)))
        self.copies = BlockCopies(parts, 4)
        kind = Generate(
            HostQueue(),
            self.forward,
            HostSampler(choose(1)),
            slots,
            copies=self.copies,
            features=[self.states, *([] if oracle is None else [Drafting(slots, oracle)])],
        )
        self.runner: StepRunner[Any] = StepRunner(HostQueue(), kind, threads=ShareThreads(threads))
        self.kind = kind
        self.steps = 0

    def run(
        self,
        *work: SlotWork,
        admitted: tuple[NewSequence, ...] = (),
        released: tuple[int, ...] = (),
        copies: tuple[Any, ...] = (),
    ) -> Result:
        self.steps += 1
        plan = Plan(
            self.steps, self.steps - 1, list(released), list(admitted), list(work), list(copies)
        )
        return self.runner.execute(plan)

    def check(self, slot: int, tokens: list[int], first: int = 0) -> None:
        """The logits of all tokens from `first` on that were computed are the true ones."""
        true = true_logits(tokens)
        for at in range(first, len(tokens)):
            assert torch.equal(self.forward.logits_of[slot, at], true[at]), at


def sequence(
    slot: int, tokens: list[int], states: list[int], state_at: int = 0, prompt: int = 1
) -> NewSequence:
    """With blocks for 32 tokens, which nobody reads."""
    blocks = list(range(8))
    return NewSequence(slot, tokens, prompt, 0, GREEDY, blocks, states=states, state_at=state_at)


def followed(tokens: list[int], count: int) -> list[int]:
    """These, and as many as the model says behind them."""
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(int(true_logits(tokens)[-1].argmax()))
    return tokens


class HalfRight(Proposer):
    """Says what is to come, but that a number of a slot's drafts, in turn, are right and the next
    is not."""

    def __init__(self, outputs: dict[int, list[int]], right: list[int]) -> None:
        """outputs: of each slot, tokens of prompt and output. right: how many are, in turn."""
        self._outputs = outputs
        self._right = right

    def propose(self, scheduled: Sequence[SlotWork]) -> list[list[int]]:
        return [self._of(work) for work in scheduled]

    def _of(self, work: SlotWork) -> list[int]:
        end = work.start + work.count
        drafts = self._outputs[work.slot][end : end + work.draft]
        right = self._right[work.start % len(self._right)]
        return [token if at < right else (token + 1) % VOCAB for at, token in enumerate(drafts)]
