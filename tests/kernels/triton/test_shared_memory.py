"""Tiles fit the shared memory of GPUs that have less than Hopper's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from penstock_kernels.triton.matmul_tiles import (
    EXPERTS_FP8,
    EXPERTS_MANY,
    INVARIANT,
    INVARIANT_LARGE,
    INVARIANT_NARROW,
    INVARIANT_SQUARE,
    INVARIANT_TALL,
    LOW_RANK,
    MatmulTiles,
)
from penstock_kernels.triton.shared_memory import (
    HOPPER,
    SharedMemory,
    fitted_product,
    fitted_widening,
    shared_memory,
    stages_that_fit,
    widening_bytes,
)
from penstock_kernels.triton.tiles import (
    AttentionChoice,
    AttentionTiles,
    attention_bytes,
    attention_choice,
    latent_choice,
)

ROOT = Path(__file__).parents[3]
BF16, FP32 = torch.bfloat16, torch.float32
A100 = SharedMemory(163 << 10, direct=False)
L40S = SharedMemory(99 << 10, direct=False)
ATTENTION = [
    # (tiles, head, dtype, what Triton's compiler takes for 8.9 and for 9.0)
    (AttentionTiles(128, 128, 0, 8, 5), 128, BF16, 163_904, 229_440),
    (AttentionTiles(64, 64, 512, 4, 5), 128, BF16, 90_144, 114_720),
    (AttentionTiles(64, 32, 512, 8, 5), 256, BF16, 102_416, 131_088),
    (AttentionTiles(64, 32, 512, 8, 3), 256, BF16, 69_640, 98_312),
    (AttentionTiles(64, 64, 0, 8, 5), 256, BF16, 172_064, 229_408),
    (AttentionTiles(32, 16, 0, 8, 5), 512, BF16, 99_336, 99_336),
]
PRODUCTS = [
    (INVARIANT_LARGE, BF16, 147_456, 196_608),
    (INVARIANT_SQUARE, BF16, 98_304, 131_072),
    (INVARIANT_TALL, BF16, 73_728, 98_304),
    (INVARIANT_NARROW, BF16, 86_016, 98_304),
    (EXPERTS_MANY, BF16, 147_456, 196_608),
    (INVARIANT, FP32, 98_304, 98_304),
    (LOW_RANK, FP32, 122_880, 122_880),
]
WIDENING = {16: (36_864, 40_960), 64: (49_152, 65_536), 128: (98_304, 131_072)}
"""Bytes for experts in FP8 whose rows are bfloat16, by the number of rows."""


class Driver:
    """A GPU's, as Triton asks it."""

    def __init__(self, size: int) -> None:
        self.utils = SimpleNamespace(get_device_properties=lambda index: {"max_shared_mem": size})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Given capability and bytes, stands for the GPU cuda:0."""

    def stand(capability: tuple[int, int], size: int) -> torch.device:
        monkeypatch.setattr(triton.runtime.driver, "_active", Driver(size))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
        return torch.device("cuda", 0)

    shared_memory.cache_clear()
    stages_that_fit.cache_clear()
    yield stand
    shared_memory.cache_clear()
    stages_that_fit.cache_clear()


@pytest.mark.parametrize(
    ("capability", "size", "direct"),
    [((8, 0), 166_912, False), ((8, 9), 101_376, False), ((9, 0), 232_448, True)],
)
def test_a_gpu_is_asked_what_it_has(
    gpu: Any, capability: tuple[int, int], size: int, *, direct: bool
) -> None:
    assert shared_memory(gpu(capability, size)) == SharedMemory(size, direct)


def test_large_products_have_fewer_stages_on_a_small_gpu(gpu: Any) -> None:
    device = gpu((8, 9), 101_376)
    assert stages_that_fit(INVARIANT_LARGE, BF16, device) == 3
    assert stages_that_fit(INVARIANT, BF16, device) == INVARIANT.stages
    assert stages_that_fit(LOW_RANK, FP32, device) == 3


@pytest.mark.parametrize(("tiles", "dtype", "small", "hopper"), PRODUCTS)
def test_what_a_product_takes_is_what_the_compiler_takes(
    tiles: MatmulTiles, dtype: torch.dtype, small: int, hopper: int
) -> None:
    each = (tiles.rows + tiles.columns) * tiles.inner * dtype.itemsize
    assert L40S.held(each, tiles.stages, dtype.itemsize) == small
    assert HOPPER.held(each, tiles.stages, dtype.itemsize) == hopper
    assert fitted_product(tiles, dtype.itemsize, HOPPER) == tiles
    assert fitted_product(tiles, dtype.itemsize, A100) == tiles


@pytest.mark.parametrize("rows", WIDENING)
def test_what_a_product_with_fp8_weights_takes_is_what_the_compiler_takes(rows: int) -> None:
    tiles = EXPERTS_FP8[rows]
    found = tuple(widening_bytes(tiles, 2, gpu, tiles.stages) for gpu in (L40S, HOPPER))
    assert found == WIDENING[rows]
    for gpu in (L40S, A100, HOPPER):
        assert fitted_widening(tiles, 2, gpu) == tiles
        assert fitted_widening(tiles, 4, gpu).stages >= 2


@pytest.mark.parametrize(("tiles", "head", "dtype", "small", "hopper"), ATTENTION)
def test_what_attention_takes_is_what_the_compiler_takes(
    tiles: AttentionTiles, head: int, dtype: torch.dtype, small: int, hopper: int
) -> None:
    assert small <= attention_bytes(tiles, head, dtype.itemsize, L40S) <= small + 2048
    assert (
        hopper
        <= attention_bytes(tiles, head, dtype.itemsize, HOPPER)
        <= hopper + (2048 if tiles.rows >= 64 else 64 << 10)
    )


def test_of_latents() -> None:
    few, many = AttentionTiles(16, 32, 512, 8, 2), AttentionTiles(32, 32, 0, 8, 2)
    for tiles, size, taken in ((few, 4, 112_704), (many, 4, 151_680), (many, 2, 75_776)):
        assert taken <= attention_bytes(tiles, 576, size, L40S, keys_only=True) <= taken + 2048


@pytest.mark.parametrize("shared", [A100, L40S, HOPPER], ids=["A100", "L40S", "Hopper"])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("invariant", [True, False])
def test_every_head_fits(shared: SharedMemory, dtype: torch.dtype, *, invariant: bool) -> None:
    """With the tiles of Hopper, but for sizes that only fewer or smaller ones fit."""
    for head in (32, 64, 80, 96, 128, 192, 256, 384, 512):
        choice = attention_choice(head, dtype, batch_invariant=invariant, shared=shared)
        usual = attention_choice(head, dtype, batch_invariant=invariant)
        for tiles, other in ((choice.few, usual.few), (choice.many, usual.many)):
            assert attention_bytes(tiles, head, dtype.itemsize, shared) <= shared.size
            if attention_bytes(other, head, dtype.itemsize, shared) <= shared.size:
                assert tiles == other
        assert choice.few.rows == usual.few.rows, "of which it depends how many heads may share"
        assert not invariant or choice.few == choice.many
    for head in (576, 512 + 256):
        choice = latent_choice(head, dtype, batch_invariant=invariant, shared=shared)
        for tiles in (choice.few, choice.many):
            taken = attention_bytes(tiles, head, dtype.itemsize, shared, keys_only=True)
            assert taken <= shared.size
        assert not invariant or choice.few == choice.many


def test_hopper_has_the_tiles_that_were_measured_there() -> None:
    large, wide = AttentionTiles(128, 128, 0, 8, 5), AttentionTiles(64, 64, 0, 8, 5)
    few = AttentionTiles(16, 64, 512, 4, 5, 168)
    for head in (64, 80, 96, 128):
        assert attention_choice(head) == AttentionChoice(few, large)
        same = AttentionTiles(64, 64, 512, 4, 5)
        assert attention_choice(head, batch_invariant=True) == AttentionChoice(same, same)
    for head in (192, 256):
        assert attention_choice(head) == AttentionChoice(replace(few, keys=32), wide)
        same = AttentionTiles(64, 32, 512, 8, 5)
        assert attention_choice(head, batch_invariant=True) == AttentionChoice(same, same)
    for head, dtype, keys in ((128, FP32, 32), (256, FP32, 16), (512, FP32, 16), (512, BF16, 16)):
        few, many = AttentionTiles(16, keys, 512, 8, 5), AttentionTiles(32, keys, 0, 8, 5)
        assert attention_choice(head, dtype) == AttentionChoice(few, many)
        assert attention_choice(head, dtype, batch_invariant=True) == AttentionChoice(few, few)
    few, many = AttentionTiles(16, 32, 512, 8, 2), AttentionTiles(32, 32, 0, 8, 2)
    for dtype in (BF16, FP32):
        assert latent_choice(576, dtype) == AttentionChoice(few, many)
        assert latent_choice(576, dtype, batch_invariant=True) == AttentionChoice(few, few)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_largest_kernels_compile_for_a_small_gpu(tmp_path: Path) -> None:
    """And ask for no more than it has."""
    environment = dict(os.environ, TRITON_CACHE_DIR=str(tmp_path))
    environment.pop("TRITON_INTERPRET", None)
    calls = ("attention-invariant-256", "latents-float32", "linear", "experts", "experts-fp8")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.kernels.triton.compile_for_hopper",
            "--ada",
            "--once",
            *calls,
            "adapters-float32",
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "_linear" in done.stdout
