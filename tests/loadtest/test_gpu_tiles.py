"""Other tiles of a kernel: each way a candidate can end, and the command without a GPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loadtest.gpu.extent import GPU
from loadtest.gpu.parts.cases import Bench, Case
from loadtest.gpu.parts.kernels import CASES
from loadtest.gpu.parts.kernels_products import GGUFTiles
from loadtest.gpu.shapes import MODELS
from loadtest.gpu.tiles import changed, kernels, rows
from loadtest.gpu.timing import Timer

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
WANTED = torch.arange(8.0).view(2, 4)


@dataclass(frozen=True)
class Fake:
    size: int


def does_not_fit() -> Tensor:
    raise RuntimeError("out of resource: shared memory")


WORKS: dict[int, Any] = {
    1: lambda: WANTED * float("nan"),
    2: lambda: WANTED + torch.tensor([0.0, 0.0, 0.0, 2.0]),
    8: does_not_fit,
}


def case() -> Case:
    def make(device: torch.device) -> Bench:
        return Bench(lambda tiles: WORKS.get(tiles and tiles.size, WANTED.clone), WANTED.clone)

    return Case("2 x 4", make, size=64.0)


def test_what_a_candidate_does_is_a_row_and_never_the_end() -> None:
    found = rows(case(), [Fake(1), Fake(2), Fake(8), Fake(16)], CPU, Timer(CPU, 1))
    failures = {row["tiles"]: row["failed"] for row in found}
    assert failures["size 1"] == "ValueError: off by nan of the reference"
    assert failures["size 2"].startswith("ValueError: off by 0.")
    assert failures["size 8"] == "RuntimeError: out of resource: shared memory"
    assert failures["size 16"] == ""
    assert math.isnan(next(iter(rows(case(), [Fake(8)], CPU, Timer(CPU, 1))))["us"])


def test_a_change_names_fields() -> None:
    assert changed(Fake(3), "size=5") == Fake(5)
    with pytest.raises(ValueError, match="no keys among size"):
        changed(Fake(3), "keys=5")


def test_every_kernel_has_its_cases() -> None:
    config = MODELS[GPU.kernels]
    measured = {case.op for make in CASES.values() for case in make(GPU, config)}
    assert {op for op, _ in kernels(config).values()} <= measured


def test_gguf_tiles_are_timed_with_the_cut_that_they_would_have() -> None:
    def cut(rows: int, *, own: int, columns: int, few: bool = False, parts: int = 0) -> int:
        return GGUFTiles(own, columns, 32, 4, 3, parts, few).parts_of(rows, 14_336, 4096)

    # 224 programs of 64 columns, 448 of 32, 112 of 128.
    wanted = {32: 2, 64: 4, 128: 8}
    for columns, parts in wanted.items():
        assert cut(1, own=16, columns=columns, few=True) == parts
        # The columns for few rows count for it too.
        assert cut(32, own=64, columns=columns) == wanted[64]
    assert cut(64, own=32, columns=64) == 1
    assert cut(128, own=64, columns=64) == 1
    assert cut(128, own=128, columns=64) == wanted[64]
    assert cut(128, own=64, columns=64, parts=8) == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "change"), [("rms-norm", "warps=2"), ("gguf-many", "columns=32,parts=2")]
)
def test_the_whole_command_without_a_gpu(tmp_path: Path, kernel: str, change: str) -> None:
    script = str(ROOT / "loadtest" / "gpu" / "run.sh")
    done = subprocess.run(
        [script, "--dry", str(tmp_path), str(tmp_path), "--tiles", kernel, change],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / f"tiles-{kernel}.json").read_text())
    assert [row["failed"] for row in document["rows"]] == [""] * len(document["rows"])
