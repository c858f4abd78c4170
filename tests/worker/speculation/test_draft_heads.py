"""A head's drafts are those of its published definition, token by token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch

from penstock.prepare import load_manifest
from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, Setup, SlotWork
from penstock.speculation import SpeculativeConfig
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.forward.backends import choose
from penstock_worker.parallel.ranks import ALONE
from penstock_worker.sampler import choose as choose_sampler
from penstock_worker.speculation.draft_head import DraftHead
from penstock_worker.speculation.loaders import draft_loader
from tests.worker.speculation.draft_folders import draft_setup
from tests.worker.speculation.head_folders import (
    MTP,
    POSITIONS,
    VOCAB,
    Eagle3,
    Reference,
    add_tensors,
    drafts_of,
    prepared_folder,
    served_model,
)

SIZE, BLOCKS = 16, 40
GREEDY = TokenSampling(0, temperature=0.0)


@dataclass
class Served:
    """A model with its head, and both as slow torch."""

    reference: Reference
    slow: Eagle3 | MTP
    setup: Setup


def written(kind: str, head: str, folder: Path) -> Served:
    hub = folder / "hub"
    mtp = head == "mtp"
    reference = served_model(kind, hub, drafts=mtp)
    slow: Eagle3 | MTP
    said = {"method": "mtp"}
    if mtp:
        slow = MTP(reference)
        add_tensors(hub, slow.tensors)
    else:
        slow = Eagle3(reference, normed=head == "eagle3, normed")
        slow.write(folder / "head")
        own = prepared_folder(folder / "head", folder / "prepared head")
        said = {"method": "eagle3", "model": str(own)}
    served = prepared_folder(hub, folder / "prepared")
    setup = msgspec.structs.replace(
        draft_setup(served, served),
        max_model_len=POSITIONS,
        speculation=SpeculativeConfig(**said, num_speculative_tokens=4),
    )
    return Served(reference, slow, setup)


CASES = [
    ("Llama", "eagle3"),
    ("Qwen3", "eagle3, normed"),
    ("Glm4Moe", "mtp"),
    ("DeepseekV3", "mtp"),
]


@pytest.fixture(scope="module", params=CASES, ids=[f"{kind}, {head}" for kind, head in CASES])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return written(*request.param, tmp_path_factory.mktemp("heads"))


class Run:
    """The worker's parts around a proposer, driven by hand."""

    def __init__(self, served: Served, backend: str) -> None:
        setup = msgspec.structs.replace(served.setup, attention_backend=backend)
        prepared = load_manifest(setup.model_dir)
        loader = draft_loader(prepared, choose(prepared, setup, 1), setup, 1, ALONE)
        assert loader is not None
        with torch.inference_mode():
            self.forward = loader.recipe().build()(BLOCKS)
        self.slots = Slots(SlotBounds(4, BLOCKS, SIZE, VOCAB, POSITIONS))
        self.sampler = choose_sampler(1)
        proposer = loader.proposer(self.slots, self.sampler, 0)
        assert isinstance(proposer, DraftHead)
        self.proposer = proposer
        self.step = 0

    def plan(
        self,
        work: list[SlotWork],
        admitted: list[NewSequence] | None = None,
        released: tuple[int, ...] = (),
    ) -> list[list[int]]:
        """Returns what was drafted behind each work."""
        self.step += 1
        plan = Plan(self.step, 0, list(released), admitted or [], work)
        self.slots.apply(plan)
        self.proposer.take(plan)
        return self.proposer.propose(plan.work)

    def compute(
        self, work: list[SlotWork], drafts: dict[int, list[int]] | None = None
    ) -> torch.Tensor:
        """Returns the logits of all rows of the works and their drafts."""
        batch = prepare_inputs(work, self.slots, drafts=drafts or {})
        with torch.inference_mode():
            logits = self.forward.logits(batch, torch.arange(len(batch.tokens)).numpy())
        for each in work:
            self.slots[each.slot].computed = each.start + each.count
        return logits


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_drafts_are_those_of_the_definition(served: Served, backend: str) -> None:
    run, most = Run(served, backend), 3
    prompt = torch.randint(VOCAB, (37,), generator=torch.Generator().manual_seed(3)).tolist()
    blocks = list(range(5, 5 + 12))
    work = [SlotWork(0, 0, 20)]
    new = NewSequence(0, prompt, len(prompt), 0, GREEDY, blocks)
    assert run.plan(work, [new]) == [[]]
    run.compute(work)
    work = [SlotWork(0, 20, 17)]
    assert run.plan(work) == [[]]
    tokens = [*prompt, int(run.compute(work)[-1].argmax())]
    slot, kept = run.slots[0], 0
    slot.append(tokens[-1])
    for turn in range(12):
        computed = len(tokens) - 1
        work = [SlotWork(0, computed, 1, draft=most if turn % 4 else 0)]
        with torch.inference_mode():
            hidden = served.slow.taken(tokens[:-1])
            wanted = drafts_of(served.slow.rows, tokens, hidden, most)
        (drafts,) = run.plan(work)
        assert drafts == (wanted if turn % 4 else [])
        # Wrong drafts are computed, too, and their hidden states are of no use.
        found = run.compute(work, {0: drafts} if drafts else None).argmax(-1).tolist()
        right = 0
        while right < len(drafts) and drafts[right] == found[right]:
            right += 1
        kept += right
        for token in found[: right + 1]:
            with torch.inference_mode():
                assert token == served.reference.next(tokens)
            tokens.append(token)
            slot.append(token)
        slot.computed = len(tokens) - 1
    assert run.proposer._hidden.count < 40
