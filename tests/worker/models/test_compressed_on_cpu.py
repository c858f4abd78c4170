"""Models whose tokens see entries that stand for several tokens, on the CPU kernels: their bits,
what they cache, and that both backends compute the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from penstock.errors import StartupError
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import block_numbers, kv_layout
from penstock_worker.forward.cpu import backend as cpu
from penstock_worker.forward.interface import Forward
from tests.worker.cpu_model import CPUModel
from tests.worker.models.family_cases import read
from tests.worker.models.test_compressed_attention import BLOCKS, CASE, CHUNKS, LENGTH, choosing
from tests.worker.models.test_compressed_attention import computed as computed_in
from tests.worker.models.test_compressed_attention import forward as by_reference
from tests.worker.models.test_family_bits import NO_FILES
from tests.worker.random_weights import RandomWeights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TABLE = np.arange(10)
GROUPS = 4
"""KV groups of either case: of entries, and of layers."""


@pytest.fixture(autouse=True)
def random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "open_weights", lambda *ignored, **also: RandomWeights())


def model(config: ModelConfig, dtype: str = "float32") -> CPUModel:
    return CPUModel(config, NO_FILES, dtype, positions=256)


def forward(of: CPUModel, block: int = 16, threads: int = 2) -> Forward:
    assert of.groups == GROUPS
    return of.forward(block_size=block, num_blocks=GROUPS * BLOCKS, threads=threads)


def computed(of: Forward, table: np.ndarray, start: int, count: int) -> torch.Tensor:
    return computed_in(of, table, start, count, groups=GROUPS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("case", [CASE, "deepseek-v4-unlike-blocks"])
def test_bits_are_those_of_any_blocks_and_chunks(case: str, dtype: str) -> None:
    """Blocks with several entries, with one, with one in several of them; chunks that end within
    entries."""
    of = model(read(case), dtype)
    if dtype == "int8":
        of = replace(of, dtype="auto", quantization="int8")
    whole = computed(forward(of), TABLE, 0, LENGTH)
    assert bool(whole.isfinite().all())
    for block, threads in ((16, 2), (48, 1), (64, 2)):
        other, start, parts = forward(of, block, threads), 0, []
        table = np.random.default_rng(block).permutation(BLOCKS)[: -(-LENGTH // block)]
        for count in CHUNKS:
            parts.append(computed(other, table, start, count))
            start += count
        assert torch.equal(torch.cat(parts), whole), block


def test_a_copy_of_blocks_has_all_entries_on_the_cpu() -> None:
    """In the middle of entries of either kind."""
    here, other, count = forward(model(read(CASE))), forward(model(read(CASE))), 77
    computed(here, TABLE, 0, count)
    moved = TABLE[::-1] + 40
    for source, target in zip(here.kv_blocks(), other.kv_blocks(), strict=True):
        for group in range(0, GROUPS * BLOCKS, BLOCKS):
            target[group + moved] = source[group + TABLE]
    rest = computed(other, moved, count, LENGTH - count)
    assert torch.equal(rest, computed(here, TABLE, count, LENGTH - count))


@pytest.mark.parametrize("case", [CASE, "deepseek-v4-unlike-blocks"])
def test_both_backends_compute_the_same(case: str) -> None:
    config = read(case)
    ours = computed(forward(model(config)), TABLE, 0, LENGTH)
    with torch.inference_mode():
        slow = computed_in(by_reference(config), TABLE, 0, LENGTH)
    assert torch.allclose(ours, slow, rtol=1e-3, atol=1e-3)


def test_where_all_entries_are_kept_nothing_is_chosen() -> None:
    """Bit for bit. With one entry less, the last rows alone choose, and leave one out."""
    config, entries = read(CASE), LENGTH // 4
    dense, kept, less = (
        computed(forward(model(choosing(config, most))), TABLE, 0, LENGTH)
        for most in (None, entries, entries - 1)
    )
    assert torch.equal(kept, dense)
    first = entries * 4 - 1
    assert torch.equal(less[:first], dense[:first])
    assert not torch.equal(less[first], dense[first])


def test_what_a_block_takes() -> None:
    """Beside what the reference backend has, each token's key in a second order, as its value."""
    config = read(CASE)
    of = model(config, "bfloat16")
    numbers = block_numbers(config, kv_layout(config, 256), 16)
    size = 2 * (numbers + 16 * 32)
    assert of.recipe().block_bytes == size
    assert of.recipe().kv_groups == kv_layout(config, 256).groups
    [view] = forward(of).kv_blocks()
    assert view.shape == (GROUPS * BLOCKS, size)


def test_a_cache_of_bytes_is_refused() -> None:
    with pytest.raises(StartupError, match="kv_cache_dtype is int8, which is not served"):
        replace(model(read(CASE)), kv_cache_dtype="int8").recipe()
