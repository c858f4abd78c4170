"""Reading checkpoints: every stored format exactly, every misfit by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock_worker.quantisation.registry import FORMATS
from penstock_worker.weights.names import from_gguf, from_hub
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights
from testing.quick_gguf import QuickReader
from tests.worker.checkpoints import TINY, load_model, tiny_files, tiny_tensors

pytestmark = pytest.mark.timeout(240)

QUANTISED = [name for name in FORMATS if name.startswith("Q") and FORMATS[name].packed]
HALVES = {
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ4_NL": (0,), "IQ4_XS": (0,), "IQ1_S": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,),
    "IQ3_XXS": (0,), "IQ3_S": (0,), "TQ1_0": (52,), "TQ2_0": (64,), "Q1_0": (0,), "Q2_0": (0,),
    "IQ1_M": (49,),
}  # fmt: skip
"""Where blocks of random bits can hold their float16 numbers. IQ1_M has a number's bits in the
upper halves of four bytes, the first of which is here."""


def stored_bytes(kind: str, elements: int) -> np.ndarray:
    """Bytes of random values in that format; of random blocks where the package can't quantise."""
    rng = np.random.default_rng(17)
    if kind == "NVFP4":
        blocks = rng.integers(0, 256, (elements // 64, 36), dtype=np.uint8)
        blocks[:, :4] &= 127
        return blocks.ravel()
    if kind not in HALVES:
        values = rng.standard_normal(elements).astype(np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]).view(np.uint8).ravel()
    stored = FORMATS[kind]
    blocks = rng.integers(0, 256, (elements // stored.elements, stored.bytes), dtype=np.uint8)
    for at in HALVES[kind]:
        put_halves(kind, blocks, at, rng.standard_normal(len(blocks)).astype(np.float16))
    return blocks.ravel()


def put_halves(kind: str, blocks: np.ndarray, at: int, numbers: np.ndarray) -> None:
    """Puts float16 numbers into blocks, [blocks, bytes] uint8."""
    if kind != "IQ1_M":
        blocks[:, at : at + 2] = numbers[:, None].view(np.uint8)
        return
    for place in range(4):
        bits = (numbers.view(np.uint16) >> 4 * place & 15).astype(np.uint8)
        blocks[:, at + 2 * place] = blocks[:, at + 2 * place] & 15 | bits << 4


def dequantised(kind: str, data: np.ndarray) -> np.ndarray:
    """Decodes bytes as the gguf package does it, or for types that it doesn't know, as ggml's
    description of the block says it."""
    if kind not in ("Q1_0", "Q2_0"):
        return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]).ravel()
    values = []
    for block in data.reshape(-1, 18):
        unit = block[:2].view(np.float16).astype(np.float32)
        for byte in map(int, block[2:]):
            if kind == "Q1_0":
                values += [unit if byte >> bit & 1 else -unit for bit in range(8)]
            else:
                values += [unit * ((byte >> bit & 3) - 1) for bit in range(0, 8, 2)]
    return np.concatenate(values)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_equals_the_gguf_package(kind: str) -> None:
    elements = 256 * 33
    data = stored_bytes(kind, elements)
    true = dequantised(kind, data).astype(np.float32)
    out = torch.empty(33, 256)
    StoredTensor("x", (33, 256), kind, data).read_into(out)
    assert out.isfinite().all()
    assert torch.equal(out.view(-1), torch.from_numpy(true))
    rounded = torch.empty(33, 256, dtype=torch.bfloat16)
    StoredTensor("x", (33, 256), kind, data).read_into(rounded)
    assert torch.equal(rounded, out.bfloat16())


def test_every_exponent_of_mxfp4_equals_the_gguf_package() -> None:
    """From 2 ** -128, which is a subnormal number, to the largest whose numbers are all finite."""
    data = np.tile(np.arange(252, dtype=np.uint8)[:, None], (1, 17))
    data[:, 1:] = (np.arange(16) | 15 - np.arange(16) << 4).astype(np.uint8)
    true = gguf.quants.dequantize(data, gguf.GGMLQuantizationType.MXFP4).ravel()
    out = torch.empty(252, 32)
    StoredTensor("x", (252, 32), "MXFP4", data.ravel()).read_into(out)
    assert torch.equal(out.view(-1), torch.from_numpy(true))


@pytest.mark.parametrize("kind", ["F32", "Q4_1", "Q6_K"])
def test_long_tensors_are_read_in_chunks(kind: str) -> None:
    elements = (1 << 20) + 256 * 3
    data = stored_bytes(kind, elements)
    out = torch.empty(elements)
    StoredTensor("x", (elements,), kind, data).read_into(out)
    true = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]).ravel()
    assert torch.equal(out, torch.from_numpy(true.astype(np.float32)))


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_K"])
def test_neighbouring_rows_are_a_tensor(kind: str) -> None:
    stored = StoredTensor("x", (33, 512), kind, stored_bytes(kind, 33 * 512))
    whole, part = torch.empty(33, 512), torch.empty(7, 512)
    stored.read_into(whole)
    stored.row_range(range(4, 11)).read_into(part)
    assert torch.equal(part, whole[4:11])


def test_unknown_format_names_the_tensor() -> None:
    stored = StoredTensor("blk.0.attn_q.weight", (256,), "Q8_K", np.zeros(292, np.uint8))
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.attn_q\.weight is stored as Q8_K"):
        stored.read_into(torch.empty(256))


def test_default_model_equals_the_gguf_package(default_model: object) -> None:
    """Spot checks through our own reader, rows of q and k put back in the hub's order."""
    files, config = default_model.weights, default_model.config
    reader = {tensor.name: tensor for tensor in QuickReader(files.files[0]).tensors}
    weights = open_weights(files, config, torch.float32)

    def theirs(name: str) -> torch.Tensor:
        tensor = reader[name]
        return torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type))

    query = theirs("blk.7.attn_q.weight").view(9, 32, 2, 576).transpose(1, 2).reshape(576, 576)
    key = theirs("blk.7.attn_k.weight").view(3, 32, 2, 576).transpose(1, 2).reshape(192, 576)
    ours = weights.take_stacked(
        [
            ("layers.7.self_attn.q_proj.weight", (576, 576)),
            ("layers.7.self_attn.k_proj.weight", (192, 576)),
            ("layers.7.self_attn.v_proj.weight", (192, 576)),
        ]
    )
    assert torch.equal(ours, torch.cat((query, key, theirs("blk.7.attn_v.weight"))))
    embedding = weights.take("embed_tokens.weight", (49152, 576))
    assert torch.equal(embedding, theirs("token_embd.weight"))


def write_gguf(
    path: Path, config: ModelConfig, kind_of: Callable[[str], str] = lambda _: "F32"
) -> WeightFiles:
    """The tiny checkpoint as a GGUF file, q and k interleaved as converters of Llama do it.

    kind_of: the type of a matrix, by its hub name; vectors are F32."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_layers)
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, tensor in tiny_tensors(config).items():
        for part, heads in (("q_proj", config.num_heads), ("k_proj", config.num_kv_heads)):
            if part in name:
                pairs = tensor.view(heads, 2, config.head_dim // 2, -1)
                tensor = pairs.transpose(1, 2).reshape(tensor.shape)
        their_name = names.get_name(name, try_suffixes=(".weight",))
        values = tensor.contiguous().numpy()
        kind = gguf.GGMLQuantizationType[kind_of(name) if tensor.dim() == 2 else "F32"]
        writer.add_tensor(their_name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return WeightFiles(format="gguf", files=(str(path),), dtype="F32")


def test_gguf_and_safetensors_of_one_model_are_one_model(tmp_path: Path) -> None:
    ours = load_model(TINY, write_gguf(tmp_path / "tiny.gguf", TINY), torch.float32)
    same = load_model(TINY, tiny_files(tmp_path), torch.float32)
    assert torch.equal(ours.embedding, same.embedding)
    assert torch.equal(ours.head.weight, same.head.weight)
    for one, other in zip(ours.layers, same.layers, strict=True):
        assert torch.equal(one.attention.qkv.weight, other.attention.qkv.weight)
        assert torch.equal(one.attention.output.weight, other.attention.output.weight)
        assert torch.equal(one.feed_forward.up.weight, other.feed_forward.up.weight)
        assert torch.equal(one.feed_forward.down.weight, other.feed_forward.down.weight)


def files_of(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> WeightFiles:
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    return WeightFiles(format="safetensors", files=(str(path),), dtype="float32")


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = tiny_tensors(TINY)
    del tensors["model.layers.1.mlp.down_proj.weight"]
    with pytest.raises(UnsupportedModel, match=r"lacks.*layers\.1\.mlp\.down_proj\.weight"):
        load_model(TINY, files_of(tmp_path, tensors), torch.float32)


def test_misshapen_tensor_is_named(tmp_path: Path) -> None:
    tensors = tiny_tensors(TINY)
    tensors["model.norm.weight"] = torch.ones(61)
    with pytest.raises(UnsupportedModel, match=r"model\.norm\.weight has shape \(61,\).*\(60,\)"):
        load_model(TINY, files_of(tmp_path, tensors), torch.float32)


def test_extra_tensor_is_named(tmp_path: Path) -> None:
    tensors = tiny_tensors(TINY) | {"model.layers.0.self_attn.q_proj.bias": torch.ones(120)}
    with pytest.raises(UnsupportedModel, match=r"doesn't use: model\.layers\.0\.self_attn\.q_proj"):
        load_model(TINY, files_of(tmp_path, tensors), torch.float32)


def test_saved_rotary_buffers_are_no_extras(tmp_path: Path) -> None:
    tensors = tiny_tensors(TINY)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(12)
    load_model(TINY, files_of(tmp_path, tensors), torch.float32)


def test_missing_file(tmp_path: Path) -> None:
    files = WeightFiles(format="safetensors", files=(str(tmp_path / "no"),), dtype="float32")
    with pytest.raises(ModelNotFound, match="no"):
        open_weights(files, TINY, torch.float32)


def test_names() -> None:
    assert from_gguf("blk.12.ffn_gate.weight") == "layers.12.mlp.gate_proj.weight"
    assert from_gguf("blk.0.attn_q_norm.weight") == "layers.0.self_attn.q_norm.weight"
    assert from_gguf("output.weight") == "lm_head.weight"
    assert from_gguf("token_types.weight") == "embed_types.weight"
    assert from_hub("model.layers.0.mlp.up_proj.weight") == "layers.0.mlp.up_proj.weight"
    assert from_hub("model.layers.0.self_attn.rotary_emb.inv_freq") is None


def test_weights_are_at_torchs_alignment(tmp_path: Path) -> None:
    weights: Weights = open_weights(tiny_files(tmp_path), TINY, torch.float32)
    taken = weights.take("layers.0.mlp.down_proj.weight", (60, 90))
    assert taken.data_ptr() % 64 == 0


def test_no_memory_is_taken_for_a_shape_that_the_file_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config may claim any."""
    path = tmp_path / "model.safetensors"
    save_file({"model.embed_tokens.weight": torch.zeros(4, 8)}, path)
    files = WeightFiles(format="safetensors", files=(str(path),), dtype="float32")
    weights = open_weights(files, TINY, torch.float32)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: pytest.fail("memory was taken"))
    for name in ("embed_tokens.weight", "lm_head.weight"):
        with pytest.raises(UnsupportedModel, match=r"has shape \(4, 8\)|lacks the tensor"):
            weights.take(name, (1 << 24, 1 << 24))
