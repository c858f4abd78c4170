"""A worker's parts around a head, driven by hand."""

from __future__ import annotations

import msgspec
import torch

from penstock.model.kv_layout import paged
from penstock.model.speculation import SpeculativeConfig
from penstock.prepare import load_manifest
from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.batch.logits import in_torch
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.forward.backends import choose
from penstock_worker.parallel.ranks import ALONE
from penstock_worker.sampler import choose as choose_sampler
from penstock_worker.sampler.interface import HostSampler
from penstock_worker.speculation.draft_head import DraftHead
from penstock_worker.speculation.loaders import draft_loader
from penstock_worker.steps.feature import StepFeature
from tests.worker.speculation.draft_folders import draft_setup
from tests.worker.speculation.head_folders import Served
from tests.worker.speculation.slow_heads import POSITIONS, VOCAB

SIZE, BLOCKS = 16, 40
"""Of each KV group; blocks of a further group have the numbers after those of the one before."""
GREEDY = TokenSampling(0, temperature=0.0)


class Run:
    """The worker's parts around a proposer, driven by hand."""

    def __init__(self, served: Served, backend: str) -> None:
        setup = msgspec.structs.replace(
            draft_setup(served.folder, served.folder, backend=backend),
            max_model_len=POSITIONS,
            state_checkpoint_tokens=POSITIONS,
            speculation=SpeculativeConfig(**served.said, num_speculative_tokens=4),
        )
        prepared = load_manifest(setup.model_dir)
        loader = draft_loader(prepared, choose(prepared, setup, 1), setup, 1, ALONE)
        assert loader is not None
        recipe = loader.recipe()
        self.states = recipe.states or StepFeature()
        own = 0 if recipe.states is None else recipe.states.own_blocks
        groups = paged(recipe.kv_groups)
        self.groups, blocks = len(groups), BLOCKS * len(groups)
        with torch.inference_mode():
            self.forward = recipe.build()(blocks + own)
        bounds = SlotBounds(4, blocks, SIZE, VOCAB, POSITIONS, groups=groups)
        self.slots = Slots(bounds)
        proposer = loader.proposer(self.slots, HostSampler(choose_sampler(1)), 0)
        assert isinstance(proposer, DraftHead)
        self.proposer = proposer
        self.step = 0

    def plan(
        self,
        work: list[SlotWork],
        admitted: list[NewSequence] | None = None,
        released: tuple[int, ...] = (),
        *,
        rests: bool = False,
    ) -> list[list[int]]:
        """Returns what was drafted behind each work. admitted: with blocks of the first group."""
        self.step += 1
        whole = [
            msgspec.structs.replace(
                each,
                blocks=[n + BLOCKS * group for group in range(self.groups) for n in each.blocks],
            )
            for each in admitted or []
        ]
        plan = Plan(self.step, 0, list(released), whole, work, rests=rests)
        self.slots.apply(plan)
        self.states.take(plan)
        self.proposer.take(plan)
        return self.proposer.propose(plan.work)

    def compute(
        self, work: list[SlotWork], drafts: dict[int, list[int]] | None = None
    ) -> torch.Tensor:
        """Returns the logits of all rows of the works and their drafts. `keep` has to follow."""
        assert not drafts or self.states.fitting(work, drafts) == drafts
        batch = prepare_inputs(work, self.slots, drafts=drafts or {})
        with torch.inference_mode():
            logits = in_torch(self.forward.logits(batch, torch.arange(len(batch.tokens)).numpy()))
        for each in work:
            self.slots[each.slot].computed = each.start + each.count
        return logits

    def keep(self, number: int, tokens: int) -> None:
        """So many of a slot's tokens are true."""
        self.slots[number].computed = tokens
        self.states.keep(number, tokens)


def waiting(run: Run) -> int:
    """Hidden states that the head's first layer hasn't read yet."""
    return run.proposer._hidden[0].count
