"""An assistant's drafts are those of transformers' own generator, and one that doesn't fit its
model is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.errors import StartupError, UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.speculation import SpeculativeConfig
from penstock.prepare import load_manifest, prepare
from penstock.prepare.from_hub_folder import read_head
from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.batch.logits import in_torch
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.forward.backends import choose
from penstock_worker.loading.load import load
from penstock_worker.parallel.ranks import ALONE
from penstock_worker.sampler import choose as choose_sampler
from penstock_worker.sampler.interface import HostSampler
from penstock_worker.speculation.assistant import AssistantDrafts
from penstock_worker.speculation.loaders import draft_loader
from tests.worker.speculation.assistant_folders import (
    CASES,
    WINDOW,
    Assisted,
    assisted,
    random_tokens,
)
from tests.worker.speculation.draft_folders import draft_setup, write_folder
from tests.worker.speculation.head_folders import prepared_folder
from tests.worker.speculation.slow_heads import POSITIONS, VOCAB

SIZE, BLOCKS = 16, 20
"""Of each KV group; blocks of a further group have the numbers after those of the one before."""
GREEDY = TokenSampling(0, temperature=0.0)


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Assisted:
    return assisted(request.param, tmp_path_factory.mktemp("assisted"))


class Run:
    """The worker's parts around a proposer, driven by hand."""

    def __init__(self, model: Assisted, backend: str) -> None:
        setup = msgspec.structs.replace(
            draft_setup(model.folder, model.folder, backend=backend),
            max_model_len=POSITIONS,
            speculation=SpeculativeConfig(**model.said, num_speculative_tokens=4),
        )
        prepared = load_manifest(setup.model_dir)
        own = choose(prepared, setup, 1)
        loader = draft_loader(prepared, own, setup, 1, ALONE)
        assert loader is not None
        recipe = loader.recipe()
        assert recipe.block_bytes == own.block_bytes
        assert recipe.fingerprint == own.fingerprint
        self.groups = recipe.kv_groups
        with torch.inference_mode():
            self.forward = recipe.build()(BLOCKS * len(self.groups))
        assert loader.served_parts == len(self.forward.kv_blocks())
        blocks = BLOCKS * len(self.groups)
        bounds = SlotBounds(4, blocks, SIZE, VOCAB, POSITIONS, groups=self.groups)
        self.slots = Slots(bounds)
        proposer = loader.proposer(self.slots, HostSampler(choose_sampler(1)), 0)
        assert isinstance(proposer, AssistantDrafts)
        self.proposer = proposer
        self.step = 0

    def begin(self, number: int, tokens: list[int], blocks: range) -> None:
        """Computes a prompt in two chunks. blocks: of the first group."""
        every = [n + BLOCKS * group for group in range(len(self.groups)) for n in blocks]
        half = len(tokens) // 2
        new = NewSequence(number, tokens, len(tokens), 0, GREEDY, every)
        assert self.compute([SlotWork(number, 0, half)], [new]) is not None
        found = self.compute([SlotWork(number, half, len(tokens) - half)])
        self.slots[number].append(int(found[-1].argmax()))

    def propose(
        self, work: list[SlotWork], admitted: list[NewSequence] | None = None
    ) -> list[list[int]]:
        self.step += 1
        plan = Plan(self.step, 0, [], admitted or [], work)
        self.slots.apply(plan)
        self.proposer.take(plan)
        return self.proposer.propose(work)

    def compute(
        self,
        work: list[SlotWork],
        admitted: list[NewSequence] | None = None,
    ) -> torch.Tensor:
        """Returns the logits of all rows."""
        drafts = self.propose(work, admitted)
        return self.rows(work, drafts)

    def rows(self, work: list[SlotWork], drafts: list[list[int]]) -> torch.Tensor:
        known = {each.slot: ids for each, ids in zip(work, drafts, strict=True) if ids}
        batch = prepare_inputs(work, self.slots, drafts=known)
        with torch.inference_mode():
            logits = in_torch(self.forward.logits(batch, torch.arange(len(batch.tokens)).numpy()))
        for each in work:
            self.slots[each.slot].computed = each.start + each.count
        return logits

    def accept(self, number: int, drafts: list[int], logits: torch.Tensor) -> None:
        """Appends what the model says, as far as drafts are right."""
        found = logits.argmax(-1).tolist()
        right = 0
        while right < len(drafts) and drafts[right] == found[right]:
            right += 1
        for token in found[: right + 1]:
            self.slots[number].append(token)
        self.slots[number].computed = len(self.slots[number].token_ids) - 1


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_drafts_are_those_of_transformers(model: Assisted, backend: str) -> None:
    """Of two sequences at a time, one longer than the window, and whatever wrong drafts have
    left."""
    run = Run(model, backend)
    run.begin(0, random_tokens(37), range(6))
    run.begin(1, random_tokens(5, 4), range(6, 10))
    said = set()
    for most in [(3, 4), (0, 2), (2, 0), (4, 3)] * 2:
        tokens = [list(run.slots[number].token_ids) for number in range(2)]
        work = [SlotWork(n, len(tokens[n]) - 1, 1, draft=most[n]) for n in range(2)]
        drafts = run.propose(work)
        for number in range(2):
            wanted = model.drafts(tokens[number], most[number]) if most[number] else []
            assert drafts[number] == wanted
            said |= set(wanted)
        logits = run.rows(work, drafts)
        first = 1 + len(drafts[0])
        for number, own in enumerate((logits[:first], logits[first:])):
            run.accept(number, drafts[number], own)
            ids = run.slots[number].token_ids
            assert ids[len(tokens[number])] == model.next(tokens[number])
    assert len(said) > 8


def test_blocks_stay_as_long_as_drafts_see_them(model: Assisted) -> None:
    """Drafts see one token more than the row of the newest one: of none of the blocks that the
    engine core may give to others."""
    run = Run(model, "cpu")
    windows = [group.window for group in run.groups if group.window is not None]
    assert set(windows) == {WINDOW + 1}
    tokens = random_tokens(24 + WINDOW)
    run.begin(0, tokens, range(6))
    for end in range(len(run.slots[0].token_ids), 60):
        ids = list(run.slots[0].token_ids)
        for number, group in enumerate(run.groups):
            for freed in range(group.first_seen(end - 1) // SIZE):
                for part in run.forward.kv_blocks():
                    part[freed + BLOCKS * number] = 255
        work = [SlotWork(0, end - 1, 1, draft=2)]
        [drafts] = run.propose(work)
        assert drafts == model.drafts(ids, 2)
        run.slots[0].append(int(run.rows(work, [[]])[-1].argmax()))


def test_nothing_is_drafted_without_the_hidden_state(model: Assisted) -> None:
    run = Run(model, "cpu")
    tokens = random_tokens(20)
    run.begin(0, tokens, range(6))
    work = [SlotWork(0, 20, 1, draft=2)]
    [drafts] = run.propose(work)
    assert len(drafts) == 2
    assert run.proposer._hidden.count == 1
    assert run.proposer.propose(work) == [drafts]  # A launch is tried again.
    run.proposer._hidden.clear()
    assert run.propose(work) == [[]]


def refused(given: Assisted, backend: str = "cpu", **said: Any) -> str:
    setup = msgspec.structs.replace(
        draft_setup(given.folder, given.folder, backend=backend),
        speculation=SpeculativeConfig(**given.said | said),
    )
    with pytest.raises(StartupError) as raised:
        load(setup)
    return str(raised.value)


def other(model: Assisted, folder: Path, text: bool = True, **said: Any) -> str:
    """The prepared folder of an assistant that says something else."""
    hub = Path(model.folder).parent / "assistant"
    path = folder / "other" / "config.json"
    path.parent.mkdir()
    config = json.loads((hub / "config.json").read_text())
    (config["text_config"] if text else config).update(said)
    path.write_text(json.dumps(config))
    (path.parent / "model.safetensors").symlink_to(hub / "model.safetensors")
    return str(prepared_folder(path.parent, folder / "prepared"))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Assisted:
    return assisted("the last one stores", tmp_path_factory.mktemp("assisted"))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"vocab_size": 302}, "for a model of 302 ids and hidden size 64; the model has 301 and"),
        ({"sliding_window": 8}, "its layer 0 reads 2 KV heads of 16 numbers and sees 8 tokens; "),
        ({"num_key_value_heads": 4}, "reads 4 KV heads of 16 numbers and sees 9 tokens; the model"),
        ({"backbone_hidden_size": 72}, "of 301 ids and hidden size 72; the model has 301 and 64"),
    ],
)
def test_an_assistant_has_to_fit_its_model(
    said: dict[str, Any], words: str, one: Assisted, tmp_path: Path
) -> None:
    folder = other(one, tmp_path, "backbone_hidden_size" not in said, **said)
    assert words in refused(one, model=folder)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"num_kv_shared_layers": 1}, "num_kv_shared_layers is 1; 3, as many as there are layers"),
        (
            {"hidden_size_per_layer_input": 8},
            "hidden_size_per_layer_input is 8; 0, as an assistant",
        ),
        ({"enable_moe_block": True}, "enable_moe_block is True; false is needed"),
        ({"model_type": "llama"}, "model_type is 'llama'; 'gemma4_text' is needed"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False; true is needed"),
        ({"use_ordered_embeddings": True, "num_centroids": 44}, "likeliest 12 of 44 groups of 301"),
    ],
)
def test_other_assistants_are_refused(
    said: dict[str, Any], words: str, one: Assisted, tmp_path: Path
) -> None:
    whole = {"tie_word_embeddings", "use_ordered_embeddings"} & said.keys()
    with pytest.raises(UnsupportedModel, match=words):
        other(one, tmp_path, not whole, **said)


def test_what_is_no_assistant_or_has_none_says_so(one: Assisted, tmp_path: Path) -> None:
    llama = write_folder(tmp_path / "llama")
    assert "llama is no assistant, which is what method mtp takes" in refused(one, model=str(llama))
    assert "drafts for Gemma 4 with method mtp is an assistant" in refused(one, model="")
    wrong = refused(one, method="eagle3")
    assert "is an assistant, and no head of EAGLE-3; with method mtp it may draft" in wrong
    setup = msgspec.structs.replace(
        draft_setup(llama, llama), speculation=SpeculativeConfig(**one.said)
    )
    with pytest.raises(StartupError, match="it drafts for Gemma 4; the model is a llama"):
        load(setup)
    alone = msgspec.structs.replace(setup, model_dir=one.said["model"], speculation=None)
    with pytest.raises(UnsupportedModel, match=r'with --speculative-config .\{"method": "mtp"'):
        load(alone)


def test_ids_are_each_in_one_group(tmp_path: Path) -> None:
    model = assisted("keys are values, and ids in groups", tmp_path)
    path = tmp_path / "assistant" / "model.safetensors"
    tensors = load_file(path)
    tensors["masked_embedding.token_ordering"][7] = 0
    save_file(tensors, path)
    setup = msgspec.structs.replace(
        draft_setup(model.folder, model.folder), speculation=SpeculativeConfig(**model.said)
    )
    with pytest.raises(UnsupportedModel, match="token_ordering names ids from 0 to 300; each"):
        load(setup)


def test_a_folder_in_the_hubs_format_is_prepared(one: Assisted, tmp_path: Path) -> None:
    hub = Path(one.folder).parent / "assistant"
    folder = prepare(str(hub), cache_dir=tmp_path)
    fields = Fields(json.loads((hub / "config.json").read_text()), "config.json")
    assert load_manifest(folder).config == read_head(fields)


def test_backends_that_serve_none_are_named(one: Assisted) -> None:
    setup = msgspec.structs.replace(
        draft_setup(one.folder, one.folder), speculation=SpeculativeConfig(**one.said)
    )
    prepared = load_manifest(one.folder)
    served = replace(choose(prepared, setup, 1), backend="triton")
    words = "the attention backend is triton; assistants are served by cpu and reference, methods"
    with pytest.raises(StartupError, match=words):
        draft_loader(prepared, served, setup, 1, ALONE)
