"""Layers that read another one's keys and values, and layers with inputs of their own: files that
have more or less than the layers need, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.errors import StartupError
from penstock.model import mechanisms as mechanism
from penstock.model.attention_spec import KVHeadsSpec
from penstock.model.prepared_model import WeightFiles
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.batch.logits import in_torch
from penstock_worker.forward.cpu import backend as cpu
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.models.decoder import DecoderModel
from tests.worker.checkpoints import hub_model
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import CASES, read
from tests.worker.models.test_parity_families import make_theirs

NO_FILES = WeightFiles(format="safetensors", files=(), dtype="float32")
TOKENS = np.random.default_rng(3).integers(0, SIZES["vocab_size"], 40)


def logits(model: DecoderModel, tokens: np.ndarray = TOKENS) -> torch.Tensor:
    shape = CacheShape.of(model.config, 16, torch.float32)
    with torch.inference_mode():
        forward = ReferenceForward(model, ReferenceAttention(shape, 4))
        batch = Batch(tokens, [np.arange(4)], np.array([0]), np.array([len(tokens)]))
        return in_torch(forward.logits(batch, np.arange(len(tokens))))


def saved(case: str, folder: Path) -> Path:
    make_theirs(*CASES[case]).save_pretrained(folder)
    return folder


def test_keys_that_no_layer_reads_change_nothing(tmp_path: Path) -> None:
    """Releases have them for the layers that read another one's."""
    folder = saved("gemma4-shared-kv", tmp_path)
    true = logits(hub_model(folder, torch.float32, 256))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    at = "model.layers.4.self_attn"
    assert f"{at}.k_proj.weight" not in tensors
    extra = {f"{at}.{name}_proj.weight": torch.randn(64, 72) for name in "kv"}
    save_file(tensors | extra | {f"{at}.k_norm.weight": torch.randn(32)}, path)
    assert torch.equal(logits(hub_model(folder, torch.float32, 256)), true)


def test_ids_beyond_the_table_of_inputs_have_its_first_row(tmp_path: Path) -> None:
    folder = saved("gemma4-shared-kv", tmp_path)
    path, name = folder / "model.safetensors", "model.embed_tokens_per_layer.weight"
    tensors = load_file(path)
    tensors[name][150:] = tensors[name][0]
    save_file(tensors, path)
    true = logits(hub_model(folder, torch.float32, 256))
    save_file(tensors | {name: tensors[name][:150].clone()}, path)
    config = (folder / "config.json").read_text()
    smaller = config.replace(
        '"vocab_size_per_layer_input": 199', '"vocab_size_per_layer_input": 150'
    )
    assert smaller != config
    (folder / "config.json").write_text(smaller)
    assert torch.equal(logits(hub_model(folder, torch.float32, 256)), true)


def test_a_block_has_room_for_the_widest_layer() -> None:
    config = read("gemma4-shared-kv")  # three of five layers have keys and values
    shape = CacheShape.of(config, 16, torch.float32)
    assert shape.num_layers == 3
    assert ReferenceAttention.block_bytes(shape) == 2 * 3 * (2 * 32) * 4 * 16
    cache = ReferenceAttention(shape, 5)
    assert sum(part.nbytes for part in cache.kv_blocks()) == 5 * cache.block_bytes(shape)


def test_a_block_that_is_copied_has_all_of_its_layers() -> None:
    shape = CacheShape.of(read("gemma4-alike"), 16, torch.float32)
    cache = ReferenceAttention(shape, 4)
    stored = [torch.randn_like(rows) for layer in range(3) for rows in cache.of_layer(layer)]
    caches = [rows for layer in range(3) for rows in cache.of_layer(layer)]
    for rows, values in zip(caches, stored, strict=True):
        rows.copy_(values)
    for part in cache.kv_blocks():
        part[3] = part[1]
    for rows, values in zip(caches, stored, strict=True):
        assert torch.equal(rows[:, 48:64], values[:, 16:32])


@pytest.mark.parametrize(
    ("case", "lacks", "said"),
    [
        ("gemma4-alike", None, "kv_cache_dtype is int8"),
        ("gemma3n", mechanism.STREAMS, "several residuals"),
        ("gemma4-experts", mechanism.EXPERTS_BESIDE, "experts beside a feed-forward"),
    ],
)
def test_what_is_lacking_is_named(
    case: str, lacks: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"backend": "reference", "kv_cache_dtype": "int8"}
    if lacks is not None:
        settings = {"backend": "cpu"}
        monkeypatch.setattr(cpu, "MECHANISMS", cpu.MECHANISMS - {lacks})
    with pytest.raises(StartupError, match=said):
        CPUModel(read(case), NO_FILES, "float32", **settings).recipe()


def test_layers_whose_heads_are_alike_but_not_the_models_have_room_for_theirs() -> None:
    config = read("gemma4-alike")
    wide = KVHeadsSpec(count=1, size=2 * config.head_dim)
    layers = tuple(
        msgspec.structs.replace(
            config.layer(number),
            attention=msgspec.structs.replace(config.layer(number).attention, kv_heads=wide),
        )
        for number in range(config.num_layers)
    )
    shape = CacheShape.of(msgspec.structs.replace(config, layers=layers), 16, torch.float32)
    assert (shape.num_kv_heads, shape.head_dim, shape.heads_of_layers) == (1, wide.size, ())
