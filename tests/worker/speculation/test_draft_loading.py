"""What a model that drafts has to be like, and what it takes beside the one that is served."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from penstock.errors import ModelNotFound, StartupError, UnsupportedModel
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec
from penstock.model.recurrent_spec import ShortConvSpec
from penstock.prepare import load_manifest
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Recipe
from penstock_worker.loading.load import load
from penstock_worker.parallel.ranks import ALONE
from penstock_worker.speculation.beside import Beside
from penstock_worker.speculation.loaders import DraftLoader, draft_loader
from penstock_worker.weights.stored import StoredTensor
from testing.model_configs import varied
from testing.tiny_models import byte_level_tokenizer
from tests.worker.speculation.draft_folders import SERVED, draft_setup, write_folder

SMALL = varied(SERVED, hidden_size=32, num_heads=2, num_kv_heads=1, num_layers=1)
WINDOW = LayerSpec(attention=AttentionSpec(window=40))


def with_layers(config: ModelConfig, *layers: LayerSpec) -> ModelConfig:
    return msgspec.structs.replace(config, layers=layers, num_layers=len(layers))


def loader(served: Path, draft: Path, backend: str = "cpu") -> DraftLoader:
    setup, prepared = draft_setup(served, draft, backend=backend), load_manifest(served)
    recipe: Recipe = choose(prepared, setup, 1)
    found = draft_loader(prepared, recipe, setup, 1, ALONE)
    assert found is not None
    return found


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_blocks_have_room_for_both_models(backend: str, tmp_path: Path) -> None:
    served = write_folder(tmp_path / "served")
    draft = write_folder(tmp_path / "draft", with_layers(SMALL, WINDOW, LayerSpec()))
    both = loader(served, draft, backend).recipe()
    own = choose(load_manifest(served), draft_setup(served, draft, backend=backend), 1)
    forward = both.build()(8)
    assert isinstance(forward, Beside)
    parts = forward.kv_blocks()
    assert {len(part) for part in parts} == {8}
    assert sum(part.shape[1] for part in parts) == both.block_bytes > own.block_bytes
    # What it computes is what it would compute alone.
    assert both.fingerprint == own.fingerprint
    assert both.kv_groups == own.kv_groups


def test_without_the_method_there_is_no_draft_model(tmp_path: Path) -> None:
    served = write_folder(tmp_path / "served")
    setup = msgspec.structs.replace(draft_setup(served, served), speculation=None)
    recipe = choose(load_manifest(served), setup, 1)
    assert draft_loader(load_manifest(served), recipe, setup, 1, ALONE) is None


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    served = write_folder(tmp_path / "served")
    with pytest.raises(ModelNotFound, match="absent is not a prepared folder"):
        load(draft_setup(served, tmp_path / "absent"))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_one_that_lacks_a_tensor_is_named_before_weights_are_read(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = write_folder(tmp_path / "served")
    draft = write_folder(tmp_path / "draft", SMALL, seed=1)
    (file,) = draft.glob("*.safetensors")
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file)
    monkeypatch.setattr(StoredTensor, "read_part_into", lambda *_: pytest.fail("data was read"))
    said = "speculative_config: the draft model draft: .* lacks the tensor model.norm.weight"
    with pytest.raises(UnsupportedModel, match=said):
        load(draft_setup(served, draft, backend=backend))


def test_layers_must_see_the_whole_context(tmp_path: Path) -> None:
    served = write_folder(tmp_path / "served", with_layers(SERVED, WINDOW, WINDOW))
    draft = write_folder(tmp_path / "draft", SMALL)
    with pytest.raises(StartupError, match="draft model draft; none can draft for a model"):
        load(draft_setup(served, draft))


def test_a_recurrent_model_drafts_for_none(tmp_path: Path) -> None:
    served = write_folder(tmp_path / "served")
    layer = LayerSpec(recurrent=ShortConvSpec(width=32, kernel=3))
    draft = write_folder(tmp_path / "draft", with_layers(SMALL, layer, LayerSpec()))
    with pytest.raises(StartupError, match="draft can't be a draft model: it has recurrent layers"):
        load(draft_setup(served, draft))


# ---- vocabularies


def tokenizer_with(*more: str) -> bytes:
    tokenizer = Tokenizer.from_str(byte_level_tokenizer().to_str())
    tokenizer.add_tokens(list(more))
    return tokenizer.to_str().encode()


def vocabularies(
    tmp_path: Path, first: bytes, second: bytes, sizes: tuple[int, int]
) -> DraftLoader:
    folders = [
        write_folder(
            tmp_path / name,
            varied(SMALL, vocab_size=size),
            contents="",
            tokenizer=tokenizer,
        )
        for name, tokenizer, size in zip(("served", "draft"), (first, second), sizes, strict=True)
    ]
    return loader(*folders)


def test_a_tokenizer_may_know_more_and_rows_may_be_padded(tmp_path: Path) -> None:
    plain, more = tokenizer_with(), tokenizer_with("<extra>")
    assert vocabularies(tmp_path, plain, more, (640, 704)).told["draft"] == "draft"


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    plain = tokenizer_with()
    other = plain.replace(b"<|im_start|>", b"<|begin_of|>")
    with pytest.raises(
        StartupError, match="draft can't draft for served: of 507 and 507 tokens, 506"
    ):
        vocabularies(tmp_path, plain, other, (640, 640))


def test_a_tokenizer_of_half_the_size_is_refused(tmp_path: Path) -> None:
    plain = tokenizer_with()
    with pytest.raises(StartupError, match="of 507 and 200 tokens, 200 have the same id"):
        vocabularies(tmp_path, plain, plain, (640, 200))
