"""Quantised checkpoints on the CUDA kernels: levels stay as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_rows import gguf_rows
from penstock_worker.dtype import CUDA, compute_dtype, stays_quantised
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.shard import shard_of
from penstock_worker.quantisation.fp8 import FP8Blocks, FP8Rows
from penstock_worker.quantisation.gguf.matrix import GGUFMatrix
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.quantised import BY_BLOCK, fp8_kind, kept_fp8
from penstock_worker.weights.weights import Weights
from tests.worker.cuda_ops.test_quantised_models import greedy, opened
from tests.worker.quantised_cases import CASES
from tests.worker.quantised_checkpoints import Checkpoint, write_checkpoint

pytestmark = pytest.mark.timeout(240)

KEPT = {
    "AWQ": 4,
    "GPTQ, first format": 4,
    "GPTQ, 2 bits": 4,
    "GPTQ, 3 bits": 4,
    "GPTQ, 8 bits": 8,
    "AutoRound": 4,
    "AutoRound, mixed bits": 4,
    "W4A16": 4,
    "W2A16": 4,
    "W4A8": 4,
    "W8A16": 8,
    "W8A16, wide scales": 8,
    "INT8, asymmetric": 8,
    "LLM.int8": 8,
    "HQQ, 4 bits": 4,
    "HQQ, 8 bits": 8,
    "BitNet, as BitLinear": 4,
    "MXFP4": 4,
    "NVFP4": 4,
    "NVFP4 of Model Optimizer": 4,
    "NVFP4 in groups of 32, of Model Optimizer": 4,
    "MXFP4 of Model Optimizer": 4,
    "INT4 of Model Optimizer": 4,
    "INT8 of Model Optimizer": 8,
}
ADDED_IN_FP8 = 1e-3 if torch.cuda.is_available() else 1e-5
"""Of the largest result: a tensor core adds FP8 products in about 14 bits. An H200 was off by
3.5e-4 of it, where cuBLAS, whose results are bfloat16, was off by 4e-3."""
UNPACKED = (
    "GPTQ, act-order",
    "GPTQ, groups of 16",
    "INT8",
    "FP8, blocks",
    "MXFP8",
    "AWQ of Model Optimizer, scaled inputs",
    "NF4",
)
"""Cases that are unpacked: INT8 among them has inputs that groups of 32 don't divide."""

GATE, UP, DOWN = (f"layers.1.mlp.{part}_proj" for part in ("gate", "up", "down"))


def weights_of(checkpoint: Checkpoint, device: torch.device) -> Weights:
    prepared = checkpoint.prepared
    return open_weights(
        prepared.weights, prepared.decoder, torch.bfloat16, device=device, keep_quantised=True
    )


def parts_of(checkpoint: Checkpoint, *modules: str) -> list[tuple[str, tuple[int, ...]]]:
    shapes = {each: checkpoint.meant[f"model.{each}.weight"].shape for each in modules}
    return [(f"{module}.weight", tuple(shape)) for module, shape in shapes.items()]


@pytest.mark.parametrize("name", KEPT)
def test_matrices_that_stay_mean_the_same(name: str, tmp_path: Path, device: torch.device) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", CASES[name])
    weights = weights_of(checkpoint, device)
    held = weights.take_matrix(parts_of(checkpoint, GATE, UP))
    assert isinstance(held, GGUFMatrix)
    assert held.layout.bits == KEPT[name]
    read = gguf_rows(held, None, torch.float32).cpu()
    true = torch.cat([checkpoint.meant[f"model.{each}.weight"] for each in (GATE, UP)])
    # A level times its scale and the minimum are rounded each, where there is a minimum; and a
    # factor that scales are divided by.
    rounded = held.layout.minima or name == "NVFP4"
    allowed = 2**-22 * true.abs().max() if rounded else 0
    assert (read - true).abs().max() <= allowed


@pytest.mark.parametrize("name", ["AWQ", "W4A16", "NVFP4"])
def test_a_product_and_a_ranks_part_of_it(name: str, tmp_path: Path, device: torch.device) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", CASES[name])
    true = checkpoint.meant[f"model.{DOWN}.weight"]
    x = torch.randn(3, true.shape[1], dtype=torch.bfloat16)
    whole = torch.zeros(3, true.shape[0])
    for rank in range(2):
        shard = shard_of(checkpoint.config, RankPlace(2, 1, rank))
        weights = weights_of(checkpoint, device).cut_to(shard)
        held = weights.take_matrix(parts_of(checkpoint, DOWN))
        assert isinstance(held, GGUFMatrix)
        product = held.product(None, torch.float32, batch_invariant=True)
        own = x[:, shard.inner.start : shard.inner.stop].to(device)
        part = product(own)
        assert torch.equal(product(own[1:2]), part[1:2])
        whole += part.cpu()
    assert torch.allclose(whole, x.float() @ true.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["FP8, per tensor", "FP8, per channel", "FP8 of fbgemm"])
def test_fp8_meets_activations_in_fp8(name: str, tmp_path: Path, device: torch.device) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", CASES[name])
    held = weights_of(checkpoint, device).take_matrix(parts_of(checkpoint, GATE, UP))
    assert isinstance(held, FP8Rows)
    true = torch.cat([checkpoint.meant[f"model.{each}.weight"] for each in (GATE, UP)])
    rows = torch.arange(held.outputs, device=device)
    assert torch.equal(held.table(torch.float32)(rows).cpu(), true)
    x = torch.randn(3, true.shape[1], dtype=torch.bfloat16)
    scale = x.float().abs().amax(-1, keepdim=True) / 448
    rounded = (x.float() / scale).to(torch.float8_e4m3fn).float() * scale
    ours = held.product(None, torch.float32, batch_invariant=True)(x.to(device)).cpu()
    wanted = rounded @ true.T
    assert (ours - wanted).abs().max() < ADDED_IN_FP8 * wanted.abs().max()


def in_groups(x: torch.Tensor) -> torch.Tensor:
    """What is left of rows whose 128 neighbouring numbers share a scale in FP8."""
    parts = []
    for part in x.float().split(128, 1):
        scale = part.abs().amax(-1, keepdim=True) / 448
        parts.append((part / scale).to(torch.float8_e4m3fn).float() * scale)
    return torch.cat(parts, 1)


def test_fp8_in_blocks_meets_activations_in_groups(tmp_path: Path, device: torch.device) -> None:
    """Inputs and outputs that blocks don't divide; several matrices one below the other."""
    checkpoint = write_checkpoint(tmp_path / "model", CASES["FP8, blocks of 128"])
    for modules in ((GATE, UP), (DOWN,)):
        held = weights_of(checkpoint, device).take_matrix(parts_of(checkpoint, *modules))
        assert isinstance(held, FP8Blocks)
        true = torch.cat([checkpoint.meant[f"model.{each}.weight"] for each in modules])
        rows = torch.arange(held.outputs, device=device)
        assert torch.equal(held.table(torch.float32)(rows).cpu(), true)
        x, bias = torch.randn(70, true.shape[1], dtype=torch.bfloat16), torch.randn(held.outputs)
        product = held.product(bias.to(device), torch.float32, batch_invariant=True)
        ours = product(x.to(device)).cpu()
        wanted = in_groups(x) @ true.T + bias
        assert (ours - wanted).abs().max() < ADDED_IN_FP8 * wanted.abs().max()
        assert torch.equal(product(x[5:6].to(device)).cpu(), ours[5:6])


def test_a_ranks_columns_of_fp8_in_blocks(tmp_path: Path, device: torch.device) -> None:
    """They stay as they are where they begin with a block; unpacked where they don't."""
    checkpoint = write_checkpoint(tmp_path / "model", CASES["FP8, blocks of 128"])
    stored = weights_of(checkpoint, device).stored(f"{DOWN}.weight", (160, 288))
    assert fp8_kind(stored, range(128, 288), device) == BY_BLOCK
    assert fp8_kind(stored, range(128), device) == BY_BLOCK
    assert fp8_kind(stored, range(144), device) is None
    assert fp8_kind(stored, range(144, 288), device) is None
    part = (range(30, 160), range(128, 288))
    held = kept_fp8([(stored, part)], BY_BLOCK, device, Tensor.copy_)
    true = checkpoint.meant[f"model.{DOWN}.weight"][30:, 128:]
    rows = torch.arange(130, device=device)
    assert torch.equal(held.table(torch.float32)(rows).cpu(), true)


def test_fp8_for_wide_activations_is_unpacked(tmp_path: Path, device: torch.device) -> None:
    case = CASES["FP8, per channel"]
    groups = {"group_0": case.settings["config_groups"]["group_0"] | {"input_activations": None}}
    settings = case.settings | {"config_groups": groups}
    checkpoint = write_checkpoint(tmp_path / "model", replace(case, settings=settings))
    held = weights_of(checkpoint, device).take_matrix(parts_of(checkpoint, GATE))
    assert isinstance(held, torch.Tensor)


@pytest.mark.parametrize("name", UNPACKED)
def test_other_matrices_are_rounded_to_the_dtype_of_activations(
    name: str, tmp_path: Path, device: torch.device
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", CASES[name])
    held = weights_of(checkpoint, device).take_matrix(parts_of(checkpoint, GATE))
    assert isinstance(held, torch.Tensor)
    assert torch.equal(held.cpu(), checkpoint.meant[f"model.{GATE}.weight"].bfloat16())


def test_what_is_unpacked_is_said_once(
    tmp_path: Path, device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said of a whole model, with a count: large ones have thousands of such matrices."""
    checkpoint = write_checkpoint(tmp_path / "model", CASES["FP8, blocks"])
    weights = weights_of(checkpoint, device).cut_to(shard_of(checkpoint.config, RankPlace()))
    for module in (GATE, UP, DOWN):
        weights.take_matrix(parts_of(checkpoint, module))
    assert not caplog.records
    weights.ignore_those(lambda name: True)
    weights.finish()
    weights.finish()
    (record,) = caplog.records
    assert "quantised matrices are unpacked" in record.getMessage()
    assert vars(record)["penstock_fields"]["matrices"] == 3


def test_what_auto_computes_in(tmp_path: Path) -> None:
    levels, floats = (
        write_checkpoint(tmp_path / name, CASES[case]).prepared.weights
        for name, case in (("levels", "AWQ"), ("floats", "FP8, blocks"))
    )
    assert stays_quantised("auto", levels)
    assert not stays_quantised("float16", levels)
    assert not stays_quantised("auto", floats)
    assert compute_dtype("auto", floats, CUDA) == torch.bfloat16
    assert compute_dtype("auto", floats) == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps", "bound"),
    [
        ("AWQ", 2, 0.03),
        ("INT8, asymmetric", 2, 0.03),
        ("FP8, blocks", 2, 0.03),
        ("FP8, blocks of 128", 1, 0.12),  # Activations are rounded to FP8, too.
    ],
)
def test_a_model_answers_as_in_float32(name: str, steps: int, bound: float, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", CASES[name])
    prepared, prompt = checkpoint.prepared, [40, 7, 93, 3, 12]
    tokens, logits = greedy(opened(prepared, "triton"), prompt, steps)
    wanted, true = greedy(opened(prepared, "reference"), prompt, steps)
    assert tokens == wanted
    assert (logits - true).abs().max() < bound * true.abs().max()
