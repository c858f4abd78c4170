"""Checkpoints with experts in FP8 or 4 bits, which stay so on CUDA, beside the same in float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.layers.experts import MixtureOfExperts
from penstock_worker.layers.triton_experts import (
    FP8Experts,
    PackedExperts,
    PlainExperts,
    TritonExperts,
)
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.shard import shard_of
from penstock_worker.quantisation.fp8 import FP8Blocks, FP8Rows
from penstock_worker.weights.opening import open_weights
from tests.worker.cpu_model import CPUModel
from tests.worker.quantised_cases import CASES
from tests.worker.quantised_checkpoints import Case, Checkpoint
from tests.worker.quantised_experts import SIZES, write_experts

pytestmark = pytest.mark.timeout(240)

POSITIONS = 64
PREFIX = "layers.0.mlp.experts"
INNER, HIDDEN, COUNT = (
    SIZES[name] for name in ("moe_intermediate_size", "hidden_size", "num_experts")
)


def for_wide_activations(case: Case) -> Case:
    """A case of equal weights, meant for products with activations of 16 bits."""
    groups = {"group_0": case.settings["config_groups"]["group_0"] | {"input_activations": None}}
    return replace(case, settings=case.settings | {"config_groups": groups})


KEPT = {name: CASES[name] for name in ("FP8, per tensor", "FP8, per channel", "FP8, blocks of 128")}
KEPT["FP8 weights only"] = for_wide_activations(CASES["FP8, per channel"])


def forward_of(checkpoint: Checkpoint, **changes: Any) -> Any:
    model = CPUModel(
        checkpoint.config,
        checkpoint.prepared.weights,
        "auto",
        positions=POSITIONS,
        backend="triton",
    )
    setup = msgspec.structs.replace(model.setup(), enforce_eager=True, **changes)
    with torch.inference_mode():
        return choose(model.prepared(), setup, 1).build()(4)


def twin_of(checkpoint: Checkpoint) -> Forward:
    model = CPUModel(
        checkpoint.config, checkpoint.twin, "float32", positions=POSITIONS, backend="reference"
    )
    return model.forward(block_size=16, num_blocks=4, threads=1)


def logits(forward: Forward) -> Tensor:
    """Logits of a prompt of five tokens."""
    tokens = np.array([7, 3, 40, 11, 2])
    batch = Batch(tokens, [np.array([1])], np.array([0]), np.array([5]))
    with torch.inference_mode():
        return forward.logits(batch, np.arange(5)).cpu()


def experts_of(forward: Any) -> TritonExperts:
    mixture = forward._model.layers[0].feed_forward
    assert isinstance(mixture, MixtureOfExperts)
    assert isinstance(mixture._routed, TritonExperts)
    return mixture._routed


@pytest.mark.parametrize("name", KEPT)
def test_a_model_with_fp8_experts(name: str, tmp_path: Path, device: torch.device) -> None:
    """A byte for each weight; what it computes is the float32 model's, up to activations in
    bfloat16; a row's bits are its own."""
    checkpoint = write_experts(tmp_path / "model", KEPT[name])
    forward = forward_of(checkpoint, batch_invariant=True)
    experts = experts_of(forward)
    products = experts._up, experts._down
    sizes = ((2 * INNER, HIDDEN), (HIDDEN, INNER))
    for product, (outputs, inputs) in zip(products, sizes, strict=True):
        assert isinstance(product, FP8Experts)
        assert product.levels.shape == (COUNT, outputs, inputs)
        assert product.levels.element_size() == 1
        assert product.scales.shape == (COUNT, outputs, 2 if "blocks" in name else 1)
    check(forward, checkpoint, device)


def check(forward: Forward, checkpoint: Checkpoint, device: torch.device) -> None:
    ours, wanted = logits(forward), logits(twin_of(checkpoint))
    assert (ours - wanted).abs().max() < 0.03 * wanted.abs().max()
    rows = torch.randn(40, HIDDEN, generator=torch.Generator().manual_seed(3)).bfloat16()
    rows, experts = rows.to(device), experts_of(forward)
    with torch.inference_mode():
        whole = experts(rows)
        for some in (slice(1), slice(7, 9), slice(39, 40)):
            assert torch.equal(experts(rows[some]), whole[some])


@pytest.mark.parametrize(
    ("name", "bits"), [("MXFP4", 4.25), ("NVFP4", 4.5), ("NVFP4 of Model Optimizer", 4.5)]
)
def test_a_model_with_experts_of_4_bits(
    name: str, bits: float, tmp_path: Path, device: torch.device
) -> None:
    """Each matrix of NVFP4 has a factor of its own, 4 bytes for each output here."""
    checkpoint = write_experts(tmp_path / "model", CASES[name])
    forward = forward_of(checkpoint, batch_invariant=True)
    experts = experts_of(forward)
    for product in experts._up, experts._down:
        assert isinstance(product, PackedExperts)
        held = product.weights
        factors = 4 * held.outputs if "NVFP4" in name else 0
        assert held.nbytes == held.outputs * held.inputs * bits / 8 + factors
    check(forward, checkpoint, device)


@pytest.mark.parametrize("name", ["FP8, per channel", "FP8, blocks of 128"])
def test_what_a_rank_keeps_of_fp8_experts(name: str, tmp_path: Path, device: torch.device) -> None:
    """Its own outputs of the way up, and inputs of the way down."""
    checkpoint = write_experts(tmp_path / "model", KEPT[name])
    prepared, kind = checkpoint.prepared, FP8Blocks if "blocks" in name else FP8Rows
    up, down = f"{PREFIX}.0.up_proj.weight", f"{PREFIX}.0.down_proj.weight"
    for rank in range(2):
        weights = open_weights(
            prepared.weights, prepared.decoder, torch.bfloat16, device=device, keep_quantised=True
        ).cut_to(shard_of(checkpoint.config, RankPlace(2, 1, rank)))
        own = slice(rank * INNER // 2, (rank + 1) * INNER // 2)
        cuts = {
            up: ((INNER, HIDDEN), (own, slice(None))),
            down: ((HIDDEN, INNER), (slice(None), own)),
        }
        for matrix, (shape, cut) in cuts.items():
            held = weights.take_experts([(matrix, shape)])
            assert isinstance(held, kind)
            rows = torch.arange(held.outputs, device=device)
            true = checkpoint.meant[f"model.{matrix}"][cut]
            assert torch.equal(held.table(torch.float32)(rows).cpu(), true)


def test_other_blocks_of_experts_are_unpacked(tmp_path: Path) -> None:
    checkpoint = write_experts(tmp_path / "model", CASES["FP8, blocks"])
    forward = forward_of(checkpoint)
    experts = experts_of(forward)
    assert isinstance(experts._up, PlainExperts)
    assert isinstance(experts._down, PlainExperts)
    ours, wanted = logits(forward), logits(twin_of(checkpoint))
    assert (ours - wanted).abs().max() < 0.03 * wanted.abs().max()
