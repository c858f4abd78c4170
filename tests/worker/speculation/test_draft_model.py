"""A draft model's drafts are what it would say by itself to all of the sequence's tokens, whatever
became of its keys and values on the way."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec
from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import Copy, NewSequence, Plan, SlotWork
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.batch.logits import in_torch
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.sampler import SampleRequest, choose
from penstock_worker.sampler.interface import HostSampler
from penstock_worker.speculation.beside import Beside
from penstock_worker.speculation.draft_model import DraftModel
from penstock_worker.speculation.drafter import DraftLimits, DraftRows
from testing.model_configs import llama_config
from tests.worker.checkpoints import tiny_files
from tests.worker.cpu_model import CPUModel

SIZE, BLOCKS, HOST_BLOCKS, POSITIONS, VOCAB, END = 16, 40, 6, 150, 101, 3
BASE = llama_config(
    vocab_size=VOCAB + 3,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    max_position=POSITIONS,
)
WINDOWED = msgspec.structs.replace(
    BASE, layers=(LayerSpec(attention=AttentionSpec(window=24)), LayerSpec())
)
"""With two KV groups."""
GREEDY, SEEDED = TokenSampling(0, temperature=0.0, logprobs=2), TokenSampling(7, top_k=20)


@dataclass
class Sequence:
    """What an engine core knows of one."""

    tokens: list[int]
    num_prompt: int
    sampling: TokenSampling
    index: int
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    computed: int = 0


class PassFailed(Exception):
    """An error with which a draft model's pass may fail."""


class Flaky:
    """A forward pass that fails now and then, when it has written something."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._random = random.Random(0)
        self.failures = 0

    def logits(self, batch: Batch, rows: np.ndarray) -> torch.Tensor:
        found = in_torch(self._forward.logits(batch, rows))
        if self._random.random() < 0.1:
            self.failures += 1
            raise PassFailed
        return found


class Drafting:
    """A draft model and its proposer; the served model is a die."""

    def __init__(self, folder: Path, config: ModelConfig, backend: str) -> None:
        files = tiny_files(folder, config)
        self.model = CPUModel(config, files, "float32", backend=backend, positions=POSITIONS)
        self.groups = self.model.groups
        forward = self.forward(BLOCKS)
        bounds = SlotBounds(8, BLOCKS, SIZE, VOCAB, POSITIONS + 20)
        self.slots = Slots(bounds)
        self.sampler = choose(1)
        self.limits = DraftLimits(4, POSITIONS, VOCAB, frozenset({END}), catch_up=10_000)
        rows = DraftRows(BLOCKS, HOST_BLOCKS, SIZE)
        self.proposer = DraftModel(
            forward, HostSampler(self.sampler), self.slots, rows, self.limits, self.groups
        )
        self.copies = BlockCopies(Beside(forward, forward, self.groups).kv_blocks(), HOST_BLOCKS)
        self.fresh = self.forward(BLOCKS)

    def forward(self, blocks: int) -> Forward:
        return self.model.forward(block_size=SIZE, num_blocks=self.groups * blocks, threads=1)

    def apply(self, plan: Plan) -> list[list[int]] | list[None]:
        """Returns the drafts; None where a pass has failed."""
        drafts: list[list[int]] | list[None]
        self.copies.make(plan.copies)
        self.slots.apply(plan)
        self.proposer.take(plan)
        try:
            drafts = self.proposer.propose(plan.work)
        except PassFailed:
            drafts = [None for _ in plan.work]
        for work in plan.work:
            self.slots[work.slot].computed = work.start + work.count
        return drafts

    def alone(self, sequence: Sequence, most: int) -> list[int]:
        """Drafts of the model alone: all tokens anew for each of them."""
        tokens = list(sequence.tokens)
        for _ in range(min(most, POSITIONS - len(tokens))):
            table = np.arange(-(-len(tokens) // SIZE))
            batch = Batch(
                np.array(tokens),
                [table],
                np.array([0]),
                np.array([len(tokens)]),
                tuple([table + group * BLOCKS] for group in range(1, self.groups)),
            )
            with torch.inference_mode():
                row = in_torch(self.fresh.logits(batch, np.array([len(tokens) - 1])))
            emitted = len(tokens) - sequence.num_prompt
            request = SampleRequest(sequence.sampling, sequence.index, emitted)
            (sampled,) = self.sampler.sample(row[:, :VOCAB].contiguous(), [request])
            assert sampled.token is not None
            tokens.append(sampled.token)
            if sampled.token == END:
                break
        return tokens[len(sequence.tokens) :]


@pytest.fixture(scope="module", params=["cpu", "reference", "cpu, windows"])
def drafting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Drafting:
    backend, *windows = request.param.split(", ")
    folder = tmp_path_factory.mktemp("draft")
    return Drafting(folder, WINDOWED if windows else BASE, backend)


class Walk:
    """A scheduler of whims, with a prefix cache."""

    def __init__(self, drafting: Drafting, seed: int) -> None:
        self.drafting = drafting
        self.random = random.Random(seed)
        self.free = list(range(BLOCKS))
        self.random.shuffle(self.free)
        self.cached: dict[tuple[int, ...], int] = {}
        """What is cached, by all tokens up to the end of a full block."""
        self.holders = [0] * BLOCKS
        self.slots = list(range(8))
        self.released: list[int] = []
        self.drafted = self.found = 0
        common = self._ids(40)
        self.sequences = [
            Sequence(
                common[: self.random.choice([0, 20, 40])] + self._ids(self.random.randint(1, 30)),
                0,
                self.random.choice([GREEDY, SEEDED]),
                index,
            )
            for index in range(6)
        ]
        for sequence in self.sequences:
            sequence.num_prompt = len(sequence.tokens)

    def _ids(self, count: int) -> list[int]:
        return [self.random.randrange(VOCAB) for _ in range(count)]

    def step(self) -> None:
        admitted: list[NewSequence] = []
        works: list[tuple[Sequence, SlotWork]] = []
        copies: list[Copy] = []
        for sequence in self.random.sample(self.sequences, len(self.sequences)):
            if self.random.random() < 0.3:
                continue
            if sequence.slot is not None and self.random.random() < 0.1:
                self._release(sequence)
                continue
            if sequence.slot is None and (len(self.slots) < 2 or len(self.free) < 12):
                continue
            new = self._admit(sequence, copies) if sequence.slot is None else None
            left = len(sequence.tokens) - sequence.computed
            count = self.random.choice([left, left, 1, min(left, 9)])
            draft = self.random.randint(0, 4) if count == left else 0
            draft = min(draft, POSITIONS + 20 - len(sequence.tokens))
            end = sequence.computed + count + draft
            wanted = -(-end // SIZE) - len(sequence.blocks)
            if wanted > len(self.free):
                if new is not None:
                    self._release(sequence, unseen=True)
                continue
            blocks = [self._take() for _ in range(max(0, wanted))]
            sequence.blocks += blocks
            if new is not None:
                admitted.append(msgspec.structs.replace(new, blocks=list(sequence.blocks)))
                blocks = []
            works.append(
                (sequence, SlotWork(sequence.slot, sequence.computed, count, blocks, draft=draft))
            )
        if not works:
            return
        released, self.released = self.released, []
        plan = Plan(1, 0, released, admitted, [work for _, work in works], copies)
        for (sequence, work), drafts in zip(works, self.drafting.apply(plan), strict=True):
            self._result(sequence, work, drafts)

    def _result(self, sequence: Sequence, work: SlotWork, drafts: list[int] | None) -> None:
        end = work.start + work.count
        sequence.computed = end
        if drafts is not None:
            assert drafts == (self.drafting.alone(sequence, work.draft) if work.draft else [])
        drafts = drafts or []
        self.drafted += len(drafts)
        if end == len(sequence.tokens):
            kept = drafts[: self.random.randint(0, 4)]
            news = kept + self._ids(1)
            sequence.tokens += news
            for token in news:
                self.drafting.slots[work.slot].append(token)
            sequence.computed += len(kept)
            self.drafting.slots[work.slot].computed = sequence.computed
        for at in range(sequence.computed // SIZE):
            self.cached.setdefault(tuple(sequence.tokens[: (at + 1) * SIZE]), sequence.blocks[at])
        if len(sequence.tokens) > POSITIONS + 10:
            self._release(sequence)
            del sequence.tokens[sequence.num_prompt :]

    def _admit(self, sequence: Sequence, copies: list[Copy]) -> NewSequence:
        sequence.slot = self.slots.pop(0)
        for at in range((len(sequence.tokens) - 1) // SIZE):
            key = tuple(sequence.tokens[: (at + 1) * SIZE])
            if key in self.cached:
                block = self.cached[key]
                if block in self.free:
                    self.free.remove(block)
                if self.random.random() < 0.3:
                    # Out to the host and into another block.
                    host = self.random.randrange(HOST_BLOCKS)
                    copies.append(Copy("out", block, host))
                    self.holders[block] += 1
                    other = self._take()
                    self._drop(block)
                    copies.append(Copy("in", host, other))
                    block = other
                else:
                    self.holders[block] += 1
            else:
                break
            sequence.blocks.append(block)
            self.found += 1
        sequence.computed = len(sequence.blocks) * SIZE
        return NewSequence(
            sequence.slot,
            list(sequence.tokens),
            sequence.num_prompt,
            sequence.index,
            sequence.sampling,
            [],
        )

    def _take(self) -> int:
        block = self.free.pop(0)
        self.holders[block] = 1
        self.cached = {key: held for key, held in self.cached.items() if held != block}
        return block

    def _drop(self, block: int) -> None:
        self.holders[block] -= 1
        if not self.holders[block]:
            self.free.append(block)

    def _release(self, sequence: Sequence, *, unseen: bool = False) -> None:
        assert sequence.slot is not None
        if not unseen:
            self.released.append(sequence.slot)
        self.slots.append(sequence.slot)
        for block in sequence.blocks:
            self._drop(block)
        sequence.slot, sequence.blocks, sequence.computed = None, [], 0


@pytest.mark.parametrize("seed", range(2))
def test_drafts_are_those_of_the_model_alone(drafting: Drafting, seed: int) -> None:
    drafting.slots.clear()
    drafting.proposer.reset()
    walk = Walk(drafting, seed)
    steps = 25 if drafting.model.backend == "reference" else 80
    for _ in range(steps):
        walk.step()
    assert walk.drafted > steps
    assert steps < 80 or walk.found > 10


def test_a_pass_that_failed_costs_its_drafts_only(
    drafting: Drafting, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafting.slots.clear()
    drafting.proposer.reset()
    flaky = Flaky(drafting.proposer._forward)
    monkeypatch.setattr(drafting.proposer, "_forward", flaky)
    walk = Walk(drafting, 9)
    for _ in range(20):
        walk.step()
    assert flaky.failures > 2
    assert walk.drafted > 10


def test_a_new_block_has_no_rows_of_whoever_had_it_before(drafting: Drafting) -> None:
    """Also where its first rows are those of drafts, of which the last was not passed on, and
    the sequence ends with them: its blocks can be found then."""
    drafting.slots.clear()
    drafting.proposer.reset()
    rows = drafting.proposer._rows
    rows.note([5], 0, SIZE, SIZE)
    tokens = [at + 10 for at in range(SIZE)]
    first = NewSequence(0, tokens, SIZE, 0, GREEDY, [2])
    drafting.apply(Plan(1, 0, [], [first], [SlotWork(0, 0, SIZE - 1)]))
    drafting.apply(Plan(2, 1, [], [], [SlotWork(0, SIZE - 1, 1, [5], draft=3)]))
    assert rows.leading([2, 5], SIZE + 4) <= SIZE


def test_tokens_that_nobody_asked_drafts_for_are_told_of_once(
    drafting: Drafting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be thousands, of each sequence in each step."""
    drafting.slots.clear()
    drafting.proposer.reset()
    rows, told = drafting.proposer._rows, []
    note = DraftRows.note

    def noting(self: DraftRows, table: list[int], start: int, end: int, computed: int) -> None:
        told.append(end // SIZE - start // SIZE)
        note(self, table, start, end, computed)

    monkeypatch.setattr(DraftRows, "note", noting)
    prompt, table = [at % VOCAB for at in range(SIZE)], list(range(8))
    first = NewSequence(0, prompt, SIZE, 0, GREEDY, table)
    drafting.apply(Plan(1, 0, [], [first], [SlotWork(0, 0, SIZE)]))
    for end in range(SIZE, 5 * SIZE):
        drafting.slots[0].append(end % VOCAB)
        drafting.apply(Plan(2, 0, [], [], [SlotWork(0, end, 1)]))
    assert max(told) == 1
    assert rows.leading(table, 5 * SIZE) == SIZE
    drafting.slots[0].append(1)
    drafting.apply(Plan(3, 0, [], [], [SlotWork(0, 5 * SIZE, 1, draft=1)]))
    assert rows.leading(table, 5 * SIZE + 1) == 5 * SIZE + 1
