"""Quantised weights with scales that are NaN or infinite are refused, whoever reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.model.prepared_model import WeightFiles
from penstock_kernels.cpu.matrix import NotFiniteError, pack
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.forward.cpu.reading import CPUWeights
from penstock_worker.quantisation.registry import FORMATS
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.repacking import repacked
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights
from testing.model_configs import llama_config
from tests.worker.weights.test_weights import HALVES, put_halves, stored_bytes, write_gguf

pytestmark = pytest.mark.timeout(120)

SCALES = HALVES | {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)}
"""Where blocks hold float16 numbers. MXFP4's scales are powers of two, and NVFP4's bytes."""
CASES = [(kind, at, bad) for kind, places in SCALES.items() for at in places for bad in "ni"]


def broken(kind: str, at: int, bad: str, rows: int = 3, columns: int = 512) -> StoredTensor:
    """One block of many, in the last row."""
    data = stored_bytes(kind, rows * columns).reshape(-1, FORMATS[kind].bytes).copy()
    value = np.array([np.nan if bad == "n" else np.inf], np.float16)
    put_halves(kind, data[-1:], at, value)
    return StoredTensor("blk.0.x", (rows, columns), kind, data.ravel())


def test_all_types_with_float_scales_are_tried() -> None:
    assert {name for name in FORMATS if name in SCALES} == {
        name
        for name, form in FORMATS.items()
        if form.kept is not None and name not in ("MXFP4", "NVFP4")
    }


@pytest.mark.parametrize(("kind", "at", "bad"), CASES)
def test_they_are_refused_by_name(kind: str, at: int, bad: str) -> None:
    stored = broken(kind, at, bad)
    with pytest.raises(UnsupportedModel, match=rf"blk\.0\.x \({kind}\) holds scales"):
        stored.read_into(torch.empty(3, 512))
    with pytest.raises(UnsupportedModel, match="aren't finite"):
        stored.read_part_into(torch.empty(2, 256), (range(1, 3), range(256, 512)))
    part = range(3), range(512)
    with pytest.raises(UnsupportedModel, match="aren't finite"):
        repacked([(stored, part)], torch.device("cpu"), Tensor.copy_)
    if FORMATS[kind].packed:
        with pytest.raises(NotFiniteError):
            pack(kind, stored.data, stored.shape, threads=2)
        return
    packing = CPUPacking(Weights({"x.weight": stored}, torch.float32), threads=2)
    with pytest.raises(UnsupportedModel, match=rf"blk\.0\.x \({kind}\) holds scales"):
        packing.matrix("x", 3, 512, kind=None)


def test_parts_that_are_sound_are_read() -> None:
    """A rank that doesn't hold the broken block doesn't see it."""
    out = torch.empty(2, 512)
    broken("Q4_0", 0, "n").read_part_into(out, (range(2), range(512)))
    assert out.isfinite().all()


def test_the_cpu_kernels_loader_names_the_tensor(tmp_path: Path) -> None:
    config = llama_config(
        architecture="llama",
        vocab_size=40,
        hidden_size=64,
        intermediate_size=96,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=32,
        max_position=64,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
    )
    path = tmp_path / "m.gguf"
    files: WeightFiles = write_gguf(path, config, lambda _: "Q8_0")
    CPUWeights(config, open_weights(files, config, torch.float32), None, 1).read(16)
    weights = open_weights(files, config, torch.float32)
    stored = weights.stored("layers.0.mlp.up_proj.weight", (96, 64))
    content = bytearray(path.read_bytes())
    at = content.index(bytes(stored.data[:34]))
    content[at : at + 2] = np.array([np.nan], np.float16).tobytes()
    path.write_bytes(content)
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_up\.weight \(Q8_0\) holds scales"):
        CPUWeights(config, open_weights(files, config, torch.float32), None, 1).read(16)
