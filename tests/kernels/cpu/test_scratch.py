"""The memory of a step is bounded, whoever is in it."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock_kernels.cpu.library import load
from penstock_kernels.cpu.memory import HUGE_PAGE, LARGE, LargeArrays
from penstock_kernels.cpu.operands import Attention
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind, Program
from penstock_kernels.cpu.structs import NUM_BUFFERS, PkBatch, PkProgram
from tests.kernels.cpu.sanitized_memory import sanitized
from tests.kernels.cpu.slow_decoder import Sizes, SlowDecoder

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
pytestmark = pytest.mark.usefixtures("loaded")


def step_bytes(attention: Attention, threads: int, sequences: int, context: int) -> int:
    """Bytes of a decode step in which one sequence has the context, and the others a token each."""
    attend = Phase(
        kind=PhaseKind.ATTEND, source=Buffer.QUERIES, target=Buffer.MIXED, attention=attention
    )
    program = Program((attend,), 100)
    nothing = np.zeros(16, np.float32)
    struct = PkProgram(
        num_phases=1,
        vocab=100,
        block_size=16,
        cache=1,
        threads=threads,
        outputs=100,
        widths=(ctypes.c_int32 * NUM_BUFFERS)(*program.widths()),
        phases=program.structs([(nothing, nothing)]),
    )
    first_row = np.arange(sequences + 1, dtype=np.int32)
    starts = np.zeros(sequences, np.int32)
    starts[0] = context - 1
    batch = PkBatch(
        rows=sequences,
        sequences=sequences,
        num_wanted=sequences,
        first_row=first_row.ctypes.data,
        starts=starts.ctypes.data,
    )
    found: int = load().pk_forward_bytes(ctypes.byref(struct), ctypes.byref(batch))
    return found


@pytest.mark.parametrize("sequences", [1, 7, 63, 64])
@pytest.mark.parametrize("threads", [2, 16])
def test_many_heads_that_share_their_keys(threads: int, sequences: int) -> None:
    """A long context beside short ones: what threads leave for each other was 65 GiB."""
    latents = Attention(layer=0, heads=128, kv_heads=1, head_dim=576, latent_dim=512)
    assert step_bytes(latents, threads, sequences, 131_072) < 512 << 20


@pytest.mark.skipif(sanitized(), reason="AddressSanitizer's memory lies where malloc puts it")
def test_a_block_needs_few_new_huge_pages() -> None:
    """Blocks are used in order: no step has the system zero a huge page for every layer at once."""
    layers, num_blocks = 8, 4000
    model = SlowDecoder(
        Sizes(hidden=32, inner=32, heads=2, kv_heads=2, positions=64, layers=layers)
    )
    decoder = model.packed(num_blocks=num_blocks)
    first = np.arange(num_blocks)
    entered = np.zeros(num_blocks, dtype=int)
    areas = [area for pair in decoder._caches for area in pair]
    for area in areas:
        pages = (area.ctypes.data + first * area.strides[0]) // HUGE_PAGE
        assert pages[-1] - pages[0] >= 2, "the areas are too small to tell"
        entered[1:] += np.diff(pages)
    assert len(areas) == 2 * layers
    assert entered.max() == 1


def area_with(address: int) -> tuple[int, set[str]]:
    """What the system says of the mapped area with this address: bytes that are in memory, and its
    flags."""
    inside, resident = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            begin, end = (int(each, 16) for each in bounds.groups())
            inside = begin <= address < end
        elif inside and line.startswith("Rss:"):
            resident = int(line.split()[1]) << 10
        elif inside and line.startswith("VmFlags:"):
            return resident, set(line.split()[1:])
    raise AssertionError("no area has this address")


@pytest.mark.skipif(sanitized(), reason="AddressSanitizer's memory lies where malloc puts it")
@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="the system has no transparent huge pages")
def test_the_first_blocks_take_no_huge_pages_and_later_ones_do() -> None:
    """With one for each layer's keys and values, a first chat took 60 MiB."""
    model = SlowDecoder(Sizes(hidden=32, inner=32, heads=2, kv_heads=2, positions=64, layers=3))
    decoder = model.packed(num_blocks=8000)
    for area in (each for pair in decoder._caches for each in pair):
        area[0] = 1
        resident, flags = area_with(area.ctypes.data)
        assert "nh" in flags
        assert resident < 256 << 10
        assert "hg" in area_with(area.ctypes.data + HUGE_PAGE)[1]


def test_large_arrays_have_the_memory_of_earlier_ones_that_nobody_has() -> None:
    arrays, columns = LargeArrays(), LARGE // 40
    first = arrays.floats(12, columns)
    assert first.shape == (12, columns)
    part = torch.from_numpy(first)[3:5]
    del first
    second = arrays.floats(12, columns)
    second[:] = 1.0
    assert not np.shares_memory(second, part.numpy()), "a tensor has some of the first"
    place = second.ctypes.data
    del second
    assert arrays.floats(11, columns).ctypes.data == place
    held = arrays.floats(11, columns)
    assert held.ctypes.data == place
    assert not np.shares_memory(arrays.floats(20, columns), held)
    assert arrays.floats(20, columns).shape == (20, columns)
    one, two = arrays.floats(2, 3), arrays.floats(2, 3)
    assert not np.shares_memory(one, two)
