"""GGUF files whose matrices are floating point, all of them or some, on the CUDA kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from penstock.formats.gguf import GGUFFile
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.from_gguf import _dtype
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import DeviceRecipe
from penstock_worker.layers.triton_ops import (
    JoinedProduct,
    LibraryLogits,
    LibraryProduct,
    TritonOps,
)
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.opening import open_weights
from testing.model_configs import varied
from tests.interpreted_triton import DEVICE
from tests.worker.checkpoints import tiny_tensors
from tests.worker.cpu_model import CPUModel
from tests.worker.cuda.simulated.device import PIECE, Device
from tests.worker.cuda.simulated.machine import Machine
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.cuda.small_models import GROUPED
from tests.worker.cuda_ops.test_quantised_models import greedy, opened
from tests.worker.weights.test_weights import write_gguf

pytestmark = pytest.mark.timeout(120)

CONFIG = varied(GROUPED, hidden_size=128, intermediate_size=256, head_dim=32)
"""Sizes that groups of weights divide; an output head of its own."""

Kinds = Callable[[str], str]
NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def mixed(name: str) -> str:
    """The type of a tensor as quantising programs leave a file: the ends as they were, and of the
    layers a part."""
    if "embed_tokens" in name or "v_proj" in name:
        return "F16"
    if "lm_head" in name:
        return "F32"
    return "BF16" if "layers.1.mlp.down_proj" in name else "Q8_0"


def few_quantised(name: str) -> str:
    """Too few bytes for a file that is called by their type."""
    return "Q8_0" if "gate_proj" in name or "up_proj" in name else "F16"


def gguf_file(folder: Path, kinds: Kinds, dtype: str) -> WeightFiles:
    """dtype: what the file is called by."""
    files = write_gguf(folder / "tiny.gguf", CONFIG, kinds)
    assert _dtype(GGUFFile(Path(files.files[0]))) == dtype
    return msgspec.structs.replace(files, dtype=dtype)


def the_same(folder: Path, kinds: Kinds) -> WeightFiles:
    """The values that the GGUF file holds, in float32."""

    def stored(name: str, values: Tensor) -> Tensor:
        if values.dim() == 1:
            return values
        kind = gguf.GGMLQuantizationType[kinds(name)]
        data = gguf.quants.quantize(values.numpy(), kind)
        return torch.from_numpy(gguf.quants.dequantize(data, kind).astype(np.float32))

    path = folder / "same.safetensors"
    save_file({name: stored(name, each) for name, each in tiny_tensors(CONFIG).items()}, path)
    return WeightFiles(format="safetensors", files=(str(path),), dtype="float32")


def answer(files: WeightFiles, dtype: str, backend: str = "triton") -> tuple[list[int], Tensor]:
    """Two greedy tokens behind a prompt, and the logits that they were chosen by."""
    model = CPUModel(CONFIG, files, dtype).prepared()
    return greedy(opened(model, backend, dtype), [40, 7, 93, 3, 12], 2)


@pytest.mark.parametrize(
    ("kind", "asked", "computed"),
    [
        ("F16", "auto", "bfloat16"),
        ("BF16", "auto", "bfloat16"),
        ("F32", "bfloat16", "bfloat16"),
        ("F16", "float16", "float16"),
        ("F16", "float32", "float32"),
    ],
)
def test_answers_are_those_of_safetensors(
    tmp_path: Path, kind: str, asked: str, computed: str
) -> None:
    """To the bit: what is computed is the same."""
    ours, logits = answer(gguf_file(tmp_path, lambda _: kind, NAMES[kind]), asked)
    wanted, true = answer(the_same(tmp_path, lambda _: kind), computed)
    assert ours == wanted
    assert torch.equal(logits, true)


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "dtype"), [(mixed, "Q8_0"), (few_quantised, "float16")])
def test_a_mixed_file_answers_as_in_float32(tmp_path: Path, kinds: Kinds, dtype: str) -> None:
    tokens, logits = answer(gguf_file(tmp_path, kinds, dtype), "auto")
    wanted, true = answer(the_same(tmp_path, kinds), "float32", "reference")
    assert tokens == wanted
    assert (logits - true).abs().max() < 0.02 * true.abs().max()


def loaded(files: WeightFiles) -> DecoderModel:
    weights = open_weights(files, CONFIG, torch.bfloat16, device=DEVICE, keep_quantised=True)
    ops = TritonOps(DEVICE, torch.bfloat16)
    return DecoderModel(CONFIG, weights, 64, ops)


def test_a_mixed_files_matrices(tmp_path: Path) -> None:
    """Floating-point ones are what safetensors give; quantised ones stay."""
    model = loaded(gguf_file(tmp_path, mixed, "Q8_0"))
    true = open_weights(the_same(tmp_path, mixed), CONFIG, torch.bfloat16, device=DEVICE)
    embedding = true.take("embed_tokens.weight", (97, 128))
    assert isinstance(model.embedding, Tensor)
    assert torch.equal(model.embedding, embedding)
    down = true.take("layers.1.mlp.down_proj.weight", (128, 256))
    head = true.take("lm_head.weight", (97, 128))
    for product, weight in ((model.layers[1].feed_forward.down, down), (model.head, head)):
        assert isinstance(product, LibraryProduct | LibraryLogits)
        assert product.weight.dtype == torch.bfloat16
        assert torch.equal(product.weight, weight)
    qkv = model.layers[0].attention.qkv
    assert isinstance(qkv, JoinedProduct)
    packed, value = qkv.products
    assert isinstance(packed.weights, GGUFWeights)  # type: ignore[attr-defined]
    wanted = true.take("layers.0.self_attn.v_proj.weight", (64, 128))
    held = value.product.weight  # type: ignore[attr-defined]
    assert held.dtype == torch.bfloat16
    assert torch.equal(held, wanted)


def bytes_of(files: WeightFiles, dtype: str) -> int:
    """What the weights take of a simulated GPU."""
    model = CPUModel(CONFIG, files, dtype, backend="triton")
    with simulated(Device(1 << 30, computes=False)) as device, torch.inference_mode():
        recipe = choose(model.prepared(), model.setup(num_blocks=2), 1)
        assert isinstance(recipe, DeviceRecipe)
        build = recipe.build()
        taken = device.allocated
        del build
    return taken


STORED = {"F32": 2.0, "F16": 2.0, "BF16": 2.0, "Q8_0": 34 / 32}
"""Bytes that an element of a matrix takes beside bfloat16 activations."""


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("kinds", "dtype"),
    [(lambda _: "F16", "float16"), (mixed, "Q8_0"), (few_quantised, "float16")],
    ids=["F16", "mixed", "few quantised"],
)
def test_the_bytes_that_weights_take(tmp_path: Path, kinds: Kinds, dtype: str) -> None:
    files = gguf_file(tmp_path, kinds, dtype)
    taken, wide = bytes_of(files, "auto"), bytes_of(files, "float32")
    same = bytes_of(the_same(tmp_path, kinds), "bfloat16")
    tensors = tiny_tensors(CONFIG)
    sizes = {name: each.numel() for name, each in tensors.items() if each.dim() == 2}
    saved = sum((2.0 - STORED[kinds(name)]) * size for name, size in sizes.items())
    rounding = 2 * PIECE * len(tensors)
    assert abs(taken - (same - saved)) < rounding
    assert (taken == same) == (saved == 0)
    assert abs(wide - same - 2 * sum(sizes.values())) < rounding


def blocks_of(files: WeightFiles, dtype: str) -> int:
    """KV blocks of a GPU whose memory they fill."""
    with simulated(Device(5 << 20, computes=False)) as device:
        made = Machine(
            device, CONFIG, files, dtype=dtype, num_kv_blocks=None, enforce_eager=True,
            max_num_seqs=16, max_num_batched_tokens=8,
        )  # fmt: skip
        made.runner.close()
        return made.parts.blocks


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_pool_has_what_weights_leave(tmp_path: Path) -> None:
    blocks = blocks_of(gguf_file(tmp_path, lambda _: "F16", "float16"), "auto")
    same = the_same(tmp_path, lambda _: "F16")
    assert blocks == blocks_of(same, "bfloat16")
    assert blocks < blocks_of(gguf_file(tmp_path, mixed, "Q8_0"), "auto")
    assert blocks > 2 * blocks_of(same, "float32")
