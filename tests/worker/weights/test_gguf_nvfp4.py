"""NVFP4 in GGUF files: the package's numbers, times the factor of a matrix or of an expert's."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec
from penstock.model.prepared_model import WeightFiles
from penstock_kernels.cpu.matrix import MatrixKind, product
from penstock_worker.dtype import stays_quantised
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.quantisation.gguf.matrix import GGUFMatrix
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights
from testing.model_configs import llama_config
from tests.worker.weights.test_weights import stored_bytes

pytestmark = pytest.mark.timeout(120)

HIDDEN, INNER, HEADS = 64, 128, 4
SHAPES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_v": (HIDDEN, HIDDEN),
    "ffn_up_exps": (3, INNER, HIDDEN),
    "ffn_down_exps": (3, HIDDEN, INNER),
}
FACTORS = {"attn_q": [0.25], "ffn_up_exps": [0.5, 2.0, 4.0], "ffn_down_exps": [3.0]}
"""Powers of two, by which nothing is rounded, and one number that is none."""


def config() -> ModelConfig:
    layer = LayerSpec(
        feed_forward=FeedForwardSpec(experts=ExpertsSpec(count=3, active=1, inner=INNER))
    )
    plain = llama_config(
        architecture="mixtral",
        vocab_size=40,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_layers=1,
        num_heads=HEADS,
        num_kv_heads=HEADS,
        head_dim=HIDDEN // HEADS,
        max_position=64,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
    )
    return ModelConfig(
        **{name: getattr(plain, name) for name in plain.__struct_fields__} | {"layers": (layer,)}
    )


def blocks(name: str) -> np.ndarray:
    """The file's bytes, [..., bytes of a row]."""
    shape = SHAPES[name]
    return stored_bytes("NVFP4", int(np.prod(shape))).reshape(*shape[:-1], -1)


def written(path: Path, factors: dict[str, list[float]]) -> WeightFiles:
    writer = gguf.GGUFWriter(str(path), "llama")
    for name in SHAPES:
        kind = gguf.GGMLQuantizationType.NVFP4
        writer.add_tensor(f"blk.0.{name}.weight", blocks(name), raw_dtype=kind)
        if name in factors:
            writer.add_tensor(f"blk.0.{name}.scale", np.array(factors[name], np.float32))
            writer.add_tensor(f"blk.0.{name}.input_scale", np.array([0.1], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return WeightFiles(format="gguf", files=(str(path),), dtype="NVFP4")


def true(name: str, expert: int = 0) -> np.ndarray:
    numbers = gguf.quants.dequantize(blocks(name), gguf.GGMLQuantizationType.NVFP4)
    factors = FACTORS.get(name, [1.0])
    if numbers.ndim == 3:
        return numbers[expert] * np.float32(factors[expert if len(factors) > 1 else 0])
    return numbers * np.float32(factors[0])


def apart(rows: np.ndarray) -> np.ndarray:
    """The halves of each head's rotary pairs one after the other."""
    by_pair = rows.reshape(HEADS, HIDDEN // HEADS // 2, 2, -1)
    return by_pair.transpose(0, 2, 1, 3).reshape(rows.shape)


WANTED = {
    "layers.0.self_attn.q_proj": apart(true("attn_q")),
    "layers.0.self_attn.v_proj": true("attn_v"),
    **{f"layers.0.mlp.experts.{n}.up_proj": true("ffn_up_exps", n) for n in range(3)},
    **{f"layers.0.mlp.experts.{n}.down_proj": true("ffn_down_exps", n) for n in range(3)},
}


@pytest.fixture
def files(tmp_path: Path) -> WeightFiles:
    return written(tmp_path / "m.gguf", FACTORS)


def opened(files: WeightFiles, *, kept: bool = False) -> Weights:
    dtype = torch.bfloat16 if kept else torch.float32
    return open_weights(files, config(), dtype, keep_quantised=kept)


@pytest.mark.parametrize("name", WANTED)
def test_reads_the_packages_numbers(name: str, files: WeightFiles) -> None:
    wanted = torch.from_numpy(WANTED[name])
    found = opened(files).take(f"{name}.weight", tuple(wanted.shape))
    assert torch.allclose(found, wanted, rtol=2.0**-23, atol=0)


@pytest.mark.parametrize("kind", [None, MatrixKind.S8H], ids=str)
@pytest.mark.parametrize("name", WANTED)
def test_runs_packed_on_cpu(name: str, kind: MatrixKind | None, files: WeightFiles) -> None:
    """Also where floating-point matrices become int8."""
    wanted = WANTED[name]
    outputs, inputs = wanted.shape
    packing = CPUPacking(opened(files), threads=2)
    packed = packing.matrix(name, outputs, inputs, kind=kind)
    assert packed.struct.kind == MatrixKind.F4B16
    read = product(127 * np.eye(inputs, dtype=np.float32), packed).T
    size = np.abs(127 * wanted).reshape(outputs, -1, 16).max(-1).repeat(16, axis=1)
    assert (np.abs(read - 127 * wanted) <= 8 * size * 2.0**-24).all()


def test_a_factor_is_not_lost() -> None:
    """Whoever reads a file's tensors without giving them their factors is told."""
    shape = (HIDDEN, HIDDEN)
    data = stored_bytes("NVFP4", HIDDEN * HIDDEN)
    stored = StoredTensor("q.weight", shape, "NVFP4", data, factors=(0.25,))
    packing = CPUPacking(Weights({"q.weight": stored}, torch.float32), threads=1)
    with pytest.raises(UnsupportedModel, match="has factors"):
        packing.matrix("q", *shape, kind=None)


@pytest.mark.parametrize("name", WANTED)
def test_stays_packed_on_triton(name: str, files: WeightFiles) -> None:
    assert stays_quantised("auto", files)
    outputs, inputs = WANTED[name].shape
    kept = opened(files, kept=True).take_matrix([(f"{name}.weight", (outputs, inputs))])
    assert isinstance(kept, GGUFMatrix)
    assert kept.nbytes == outputs * (inputs // 2 + inputs // 16 + 4)
    codes = torch.cat((kept.levels & 15, kept.levels >> 4), -1).transpose(0, 1).int()
    twice = torch.tensor(gguf.quants.NVFP4.kvalues)[codes].reshape(outputs, -1, 16)
    scales = kept.scales.view(torch.float8_e4m3fn).float() / 2 * kept.units
    read = (twice * scales.T[..., None]).flatten(1)
    assert torch.allclose(read, torch.from_numpy(WANTED[name]), rtol=2.0**-22, atol=0)


def test_scales_of_other_experts_are_refused(tmp_path: Path) -> None:
    files = written(tmp_path / "m.gguf", {"ffn_up_exps": [1.0, 2.0]})
    with pytest.raises(UnsupportedModel, match=r"ffn_up_exps\.weight has 2 scales"):
        opened(files)


def test_a_factor_counts_whoever_decodes() -> None:
    data, out = stored_bytes("NVFP4", 256), torch.empty(4, 64)
    numbers: Tensor = torch.from_numpy(
        gguf.quants.dequantize(data, gguf.GGMLQuantizationType.NVFP4)
    ).view(4, 64)
    StoredTensor("x", (4, 64), "NVFP4", data, factors=(0.5,)).read_into(out)
    assert torch.equal(out, numbers / 2)
