"""A shard's tensors are slices of the whole ones, bit by bit, out of every kind of file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.errors import UnsupportedModel
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import PreparedModel, WeightFiles
from penstock_worker.models.decoder import EMBEDDING, HEAD
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.parallel.shard import shard_of
from penstock_worker.quantisation.registry import FORMATS
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights
from testing.model_configs import varied
from tests.worker.checkpoints import TINY, tiny_files, tiny_tensors
from tests.worker.weights.test_weights import stored_bytes, write_gguf

pytestmark = pytest.mark.timeout(240)


def whole_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Whole shapes of a layer and of the ends, under our names."""
    tensors = tiny_tensors(varied(config, num_layers=1, vocab_size=1))
    shapes = {
        name.removeprefix("model.").replace("layers.0.", f"layers.{layer}."): tuple(tensor.shape)
        for name, tensor in tensors.items()
        if ".layers." in name
    }
    return shapes | {EMBEDDING: (config.vocab_size, config.hidden_size)}


def joined(pieces: list[torch.Tensor], name: str, whole: torch.Tensor) -> torch.Tensor:
    if pieces[0].shape == whole.shape:
        return pieces[0]  # Norms are everybody's.
    return torch.cat(pieces, 1 if "o_proj" in name or "down_proj" in name else 0)


def compare(files: WeightFiles, config: ModelConfig, tensor: int, layer: int) -> None:
    def opened() -> Weights:
        return open_weights(files, config, torch.float32)

    parts = [
        opened().cut_to(shard_of(config, RankPlace(tensor, 1, rank))) for rank in range(tensor)
    ]
    for name, shape in whole_shapes(config, layer).items():
        whole = opened().take(name, shape)
        pieces = [part.take(name, shape) for part in parts]
        if tensor > config.num_kv_heads and ("k_proj" in name or "v_proj" in name):
            assert all(torch.equal(piece, whole) for piece in pieces)
            continue
        assert torch.equal(joined(pieces, name, whole), whole), name


@pytest.mark.parametrize("tensor", [2, 3, 5])
@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_parts_of_the_tiny_model(tmp_path: Path, form: str, tensor: int) -> None:
    """GGUF keeps rows of q and k rearranged: a part has to take its own from all over them."""
    make = write_gguf(tmp_path / "x.gguf", TINY) if form == "gguf" else tiny_files(tmp_path)
    compare(make, TINY, tensor, 1)


@pytest.mark.parametrize("tensor", [2, 3])
def test_parts_of_the_default_model(default_model: PreparedModel, tensor: int) -> None:
    config = default_model.config
    weights = [
        open_weights(default_model.weights, config, torch.float32).cut_to(
            shard_of(config, RankPlace(tensor, 1, rank))
        )
        for rank in range(tensor)
    ]
    names = [("o_proj", (576, 576)), ("q_proj", (576, 576)), ("k_proj", (192, 576))]
    for module, shape in names:
        name = f"layers.7.self_attn.{module}.weight"
        whole = open_weights(default_model.weights, config, torch.float32).take(name, shape)
        pieces = [one.take(name, shape) for one in weights]
        assert torch.equal(joined(pieces, name, whole), whole)
    down, shape = "layers.29.mlp.down_proj.weight", (576, 1536)
    whole = open_weights(default_model.weights, config, torch.float32).take(down, shape)
    assert torch.equal(torch.cat([one.take(down, shape) for one in weights], 1), whole)


@pytest.mark.parametrize("kind", FORMATS)
def test_columns_need_not_begin_at_a_block(kind: str) -> None:
    stored = StoredTensor("x", (33, 1024), kind, stored_bytes(kind, 33 * 1024))
    whole = torch.empty(33, 1024)
    stored.read_into(whole)
    for rows, columns in [
        (range(33), range(96, 608)),
        (range(5, 9), range(1024)),
        (range(32, 33), range(255, 257)),
    ]:
        part = torch.empty(len(rows), len(columns))
        stored.read_part_into(part, (rows, columns))
        assert torch.equal(part, whole[rows.start : rows.stop, columns.start : columns.stop])


def test_temporary_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However wide a part is, only so many elements are decoded at a time."""
    seen: list[int] = []
    plain = FORMATS["F16"]

    def decode(blocks: torch.Tensor) -> torch.Tensor:
        seen.append(blocks.numel())
        return plain.decode(blocks)

    monkeypatch.setitem(FORMATS, "F16", plain._replace(decode=decode))
    shape = (6000, 700)
    stored = StoredTensor("x", shape, "F16", stored_bytes("F16", math.prod(shape)))
    stored.read_part_into(torch.empty(6000, 350), (range(6000), range(350, 700)))
    assert max(seen) <= 2 << 20
    assert sum(seen) == 6000 * 350 * 2, "what other ranks have isn't read"


def ranks_at(tensor: int, pipeline: int, rank: int) -> Ranks:
    return Ranks(RankPlace(tensor, pipeline, rank))


def load(config: ModelConfig, files: WeightFiles, ranks: Ranks) -> object:
    from penstock_worker.models.decoder import DecoderModel

    weights = open_weights(files, config, torch.float32)
    return DecoderModel(config, weights, 64, ranks=ranks)


def test_each_stage_has_its_own(tmp_path: Path) -> None:
    files = tiny_files(tmp_path)
    first, last = (load(TINY, files, ranks_at(1, 2, rank)) for rank in range(2))
    assert len(first.layers) == len(last.layers) == 1
    assert not hasattr(first, "head")
    assert not hasattr(last, "embedding")


def test_tied_embeddings_are_at_both_ends(tmp_path: Path) -> None:
    tied = varied(TINY, tie_word_embeddings=True)
    files = tiny_files(tmp_path, tied)
    first, last = (load(tied, files, ranks_at(1, 2, rank)) for rank in range(2))
    assert torch.equal(first.embedding, last.head.weight)


def test_biases_of_sums_are_one_ranks(tmp_path: Path) -> None:
    config = varied(TINY, output_bias=True, mlp_bias=True)
    tensors = tiny_tensors(config)
    generator = torch.Generator().manual_seed(1)
    for layer in range(2):
        at = f"model.layers.{layer}"
        for name, size in (("self_attn.o_proj", 60), ("mlp.down_proj", 60)):
            tensors[f"{at}.{name}.bias"] = torch.randn(size, generator=generator)
        for name in ("mlp.gate_proj", "mlp.up_proj"):
            tensors[f"{at}.{name}.bias"] = torch.randn(90, generator=generator)
    path = tmp_path / "biased.safetensors"
    save_file(tensors, path)
    files = WeightFiles(format="safetensors", files=(str(path),), dtype="float32")
    for rank in range(2):
        (layer, _) = load(config, files, ranks_at(2, 1, rank)).layers
        assert (layer.attention.output.product.bias is None) == (rank == 1)
        assert (layer.feed_forward.down.product.bias is None) == (rank == 1)
        assert layer.feed_forward.up.bias is not None


@pytest.mark.parametrize("rank", range(4))
def test_a_tensor_that_nobody_needs_is_named(tmp_path: Path, rank: int) -> None:
    tensors = tiny_tensors(TINY) | {"model.layers.2.mlp.up_proj.weight": torch.ones(1)}
    path = tmp_path / "extra.safetensors"
    save_file(tensors, path)
    files = WeightFiles(format="safetensors", files=(str(path),), dtype="float32")
    with pytest.raises(UnsupportedModel, match=r"doesn't use: model\.layers\.2\.mlp\.up_proj"):
        load(TINY, files, ranks_at(2, 2, rank))


def test_a_head_beside_tied_embeddings_is_no_extra(tmp_path: Path) -> None:
    tied = varied(TINY, tie_word_embeddings=True)
    path = tmp_path / "both.safetensors"
    tensors = tiny_tensors(tied)
    save_file(tensors | {HEAD: tensors["model.embed_tokens.weight"].clone()}, path)
    files = WeightFiles(format="safetensors", files=(str(path),), dtype="float32")
    for rank in range(4):
        load(tied, files, ranks_at(2, 2, rank))


def test_ranks_share_the_heads_of_three_dimensions() -> None:
    """A GGUF file has the maps of latents so."""
    values = np.arange(4 * 3 * 32, dtype=np.float32)
    tensor = StoredTensor("blk.0.attn_k_b.weight", (4, 3, 32), "F32", values.view(np.uint8))
    out = torch.empty(2, 3, 32)
    tensor.read_part_into(out, (range(2, 4), range(3), range(32)))
    assert torch.equal(out.flatten(), torch.from_numpy(values)[2 * 3 * 32 :])
    with pytest.raises(UnsupportedModel, match="only the first can be shared"):
        tensor.read_part_into(out, (range(2, 4), range(2), range(32)))
