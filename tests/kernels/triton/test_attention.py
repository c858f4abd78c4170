"""Paged attention against dense float64 attention, and against itself in other company and chunks.

Splits and tiles are smaller than those that serve, so that short sequences have several.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_kernels.triton.attention import paged
from penstock_kernels.triton.attention.kv_scales import KVScales
from penstock_kernels.triton.attention.paged import FULL, Variant
from penstock_kernels.triton.attention.plan import DeviceAttentionPlan, TileList
from penstock_kernels.triton.tiles import AttentionChoice, AttentionTiles, attention_choice
from tests.kernels.triton.paged import Case, Sequence, dense, run_step, sequence

pytestmark = pytest.mark.timeout(300)

TILES = AttentionTiles(16, 32, 64, 4, 2)
SAME = AttentionChoice(TILES, TILES, split_queries=3)
WIDE = AttentionChoice(TILES, AttentionTiles(64, 32, 64, 4, 2), split_queries=3)
SHAPES = [(3, 1, 64), (2, 2, 80), (4, 1, 96), (8, 1, 128), (2, 2, 192), (6, 2, 256)]
BOUNDS = {torch.float32: 5e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Absolute, for standard normal values.  bfloat16 keeps 8 bits of weights and result."""


def error(part: torch.Tensor, one: Sequence, start: int, variant: Variant = FULL) -> float:
    wanted = dense(one, variant)[start : start + len(part)]
    return float((part.double() - wanted).abs().max())


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(shape, torch.bfloat16) for shape in SHAPES]
    + [(SHAPES[0], torch.float32), (SHAPES[5], torch.float32), (SHAPES[1], torch.float16)],
    ids=str,
)
def test_prefill_and_decode(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    """One of each in a call, at a split's edge and past it."""
    prefilled, decoded = sequence(1, 66, shape, dtype), sequence(2, 130, shape, dtype)
    case = Case(WIDE)
    parts = run_step([(prefilled, 0, 66), (decoded, 129, 1), (decoded, 126, 2)], case, device)
    assert error(parts[0], prefilled, 0) < BOUNDS[dtype]
    assert error(parts[1], decoded, 129) < BOUNDS[dtype]
    assert error(parts[2], decoded, 126) < BOUNDS[dtype]


@pytest.mark.parametrize(
    "variant",
    [
        Variant(1),
        Variant(40),
        Variant(64, 3.0),
        Variant(0, 3.0),
        Variant(chunk=48),
    ],
    ids=str,
)
def test_window_and_soft_cap(variant: Variant, device: torch.device) -> None:
    one = sequence(3, 135, (4, 2, 64), torch.float32)
    case = Case(WIDE, 32, variant)
    parts = run_step([(one, 100, 35), (one, 134, 1), (one, 30, 3)], case, device)
    for part, start in zip(parts, (100, 134, 30), strict=True):
        assert error(part, one, start, variant) < BOUNDS[torch.float32], start


@pytest.mark.parametrize("variant", [FULL, Variant(40)], ids=str)
def test_rows_that_see_further_than_themselves(variant: Variant, device: torch.device) -> None:
    """Two spans; one is longer than a tile, and one lies at a step's end. Whole, in chunks and
    beside a text, in few rows and in many."""
    one = sequence(3, 135, (4, 2, 64), torch.float32)
    one.last_seen = np.arange(135)
    one.last_seen[20:90], one.last_seen[125:135] = 89, 134
    text = sequence(4, 70, (4, 2, 64), torch.float32)
    case = Case(SAME, 32, variant)
    whole, beside = run_step([(one, 0, 135), (text, 65, 5)], case, device)
    assert error(whole, one, 0, variant) < BOUNDS[torch.float32]
    assert error(beside, text, 65, variant) < BOUNDS[torch.float32]
    parts = [run_step([(one, start, end - start)], case, device)[0]
             for start, end in ((0, 15), (15, 100), (100, 124), (124, 135))]  # fmt: skip
    assert torch.equal(torch.cat(parts), whole)


def test_a_layer_may_ignore_that_rows_see_further(device: torch.device) -> None:
    one = sequence(3, 135, (4, 2, 64), torch.float32)
    plain = run_step([(one, 0, 135)], Case(SAME, 32, FULL), device)[0]
    one.last_seen = np.arange(135)
    one.last_seen[20:90], one.last_seen[125:135] = 89, 134
    causal = run_step([(one, 0, 135)], Case(SAME, 32, FULL, causal=True), device)[0]
    assert torch.equal(causal, plain)


@pytest.mark.parametrize("variant", [FULL, Variant(40)], ids=str)
def test_sinks(variant: Variant, device: torch.device) -> None:
    """A score larger than all others, one that is nothing beside them, and two between; a decode
    has a chunk's bits."""
    one, sinks = sequence(3, 135, (4, 2, 64), torch.float32), torch.tensor([30.0, -30.0, 0.0, 2.0])
    case = Case(SAME, 32, variant, sinks=sinks)
    parts = run_step([(one, 100, 35), (one, 134, 1), (one, 30, 3)], case, device)
    for part, start in zip(parts, (100, 134, 30), strict=True):
        wanted = dense(one, variant, sinks)[start : start + len(part)]
        assert (part.double() - wanted).abs().max() < BOUNDS[torch.float32]
    assert torch.equal(parts[1][0], parts[0][-1])


@pytest.mark.parametrize("variant", [FULL, Variant(21)], ids=str)
def test_blocks_of_any_size(variant: Variant, device: torch.device) -> None:
    """Parts of a tile of 32 keys, as large as one, several of them, and neither."""
    one = sequence(3, 71, (2, 1, 16), torch.float32)
    work = [(one, 40, 31), (one, 70, 1)]
    parts = run_step(work, Case(SAME, 16, variant), device)
    for part, start in zip(parts, (40, 70), strict=True):
        assert error(part, one, start, variant) < BOUNDS[torch.float32]
    for size in (1, 8, 24, 32, 64, 96):
        other = run_step(work, Case(SAME, size, variant), device)
        assert all(torch.equal(*pair) for pair in zip(other, parts, strict=True)), size


@pytest.mark.parametrize("variant", [FULL, Variant(40, 3.0)], ids=str)
def test_all_keys_as_one_split(variant: Variant, device: torch.device) -> None:
    """Prompts are computed so by default: their bits don't depend on how they are cut."""
    one, other = (
        sequence(3, 135, (4, 2, 64), torch.float32),
        sequence(5, 70, (4, 2, 64), torch.float32),
    )
    choice = AttentionChoice(TILES, AttentionTiles(64, 32, 0, 4, 2), split_queries=3)
    case = Case(choice, 32, variant)
    (whole,) = run_step([(one, 0, 135)], case, device)
    assert error(whole, one, 0, variant) < BOUNDS[torch.float32]
    part = run_step([(other, 60, 10), (one, 75, 50)], case, device)[1]
    assert torch.equal(part, whole[75:125])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("split", [64, 0])
def test_tiles_that_all_rows_see_have_the_bits_of_masked_ones(
    split: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Where rows say what they see, every tile is masked; here they say what they see anyway."""
    many = AttentionTiles(32, 32, split, 4, 2)
    case = Case(AttentionChoice(TILES, many, split_queries=3), 32)
    one, saying = (sequence(3, 135, (4, 2, 80), dtype) for _ in range(2))
    saying.last_seen = np.arange(135)
    # Tiles begin before, at and behind a border of 32 keys.
    for start, count in ((0, 135), (31, 40), (32, 33), (33, 102)):
        whole, masked = (
            run_step([(each, start, count)], case, device)[0] for each in (one, saying)
        )
        assert torch.equal(whole, masked), start
        assert error(whole, one, start) < BOUNDS[dtype]


def test_fp8_cache(device: torch.device) -> None:
    """Against dense attention over what an FP8 cache can hold. Each head has scales of its own."""
    one = sequence(4, 70, (6, 2, 64), torch.bfloat16)
    scales = KVScales.of(torch.tensor([0.5, 4.0]), torch.tensor([0.25, 0.03125]))
    for rows, scale in ((one.key, scales.key), (one.value, scales.value)):
        held = (rows.float() / scale[:, None]).to(torch.float8_e4m3fn)
        rows.copy_(held.float() * scale[:, None])
    case = Case(WIDE, 16, FULL, scales, torch.float8_e4m3fn)
    parts = run_step([(one, 0, 40), (one, 69, 1)], case, device)
    assert error(parts[0], one, 0) < BOUNDS[torch.bfloat16]
    assert error(parts[1], one, 69) < BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(6, 2, 64), (3, 1, 80)], ids=str)
def test_pairs_of_fp8_have_the_bits_of_single_values(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = sequence(4, 135, shape, dtype)
    case = Case(SAME, 16, FULL, cache=torch.float8_e4m3fn)
    work = [(one, 30, 60), (one, 134, 1), (one, 70, 2)]
    paired = run_step(work, case, device)
    monkeypatch.setattr(paged, "PAIRED_ROWS", 0)
    for ours, single in zip(paired, run_step(work, case, device), strict=True):
        assert torch.equal(ours, single)


def test_a_float32_cache_under_bfloat16_queries(device: torch.device) -> None:
    one = sequence(5, 40, (2, 1, 64), torch.bfloat16)
    (part,) = run_step([(one, 30, 10)], Case(WIDE, cache=torch.float32), device)
    assert error(part, one, 30) < BOUNDS[torch.bfloat16]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "variant", "dtype"),
    [
        ((3, 1, 64), FULL, torch.float32),
        ((2, 2, 80), Variant(37, 5.0), torch.float32),
        ((4, 1, 128), FULL, torch.bfloat16),
        ((2, 2, 64), Variant(chunk=40), torch.float32),
    ],
    ids=str,
)
def test_bits_depend_on_the_sequence_alone(
    shape: tuple[int, int, int], variant: Variant, dtype: torch.dtype, device: torch.device
) -> None:
    """However it is chunked, decode included, whatever the block size, whoever else is there."""
    one, length = sequence(6, 131, shape, dtype), 131
    (whole,) = run_step([(one, 0, length)], Case(SAME, 16, variant), device)
    for start in (0, 1, 62, 63, 64, 65, 127, 128, 130):
        (part,) = run_step([(one, start, 1)], Case(SAME, 32, variant), device)
        assert torch.equal(part, whole[start : start + 1]), start
    for start, count in ((60, 2), (63, 3), (0, 7), (50, 40), (100, 31)):
        others = [(sequence(70 + count, 30, shape, dtype), 25 - count % 3, 5) for _ in range(2)]
        work = [others[0], (one, start, count), others[1]]
        part = run_step(work, Case(SAME, 16, variant), device)[1]
        assert torch.equal(part, whole[start : start + count]), (start, count)


def test_a_decode_alone_among_many_and_at_another_place(device: torch.device) -> None:
    """The number of splits that a launch has room for follows from the longest."""
    shape, dtype = (4, 1, 64), torch.bfloat16
    one = sequence(8, 90, shape, dtype)
    (alone,) = run_step([(one, 89, 1)], Case(SAME), device)
    long = sequence(9, 300, shape, dtype)
    short = sequence(10, 3, shape, dtype)
    for place in range(3):
        work = [(long, 299, 1), (short, 2, 1)]
        work.insert(place, (one, 89, 1))
        assert torch.equal(run_step(work, Case(SAME), device)[place], alone), place


@pytest.mark.parametrize("variant", [FULL, Variant(70)], ids=str)
def test_any_number_of_programs_goes_through_the_splits(
    variant: Variant, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One long context among short ones: a program for each pair of a tile and a split, three for
    all, and fewer tiles at a time. A chunk's bits come from programs that have a tile each."""
    shape, dtype = (4, 1, 16), torch.float32
    ends = [(330, 3), (2, 1), (64, 1), (65, 2), *[(9, 1)] * 13]
    lone = [sequence(20 + n, length, shape, dtype) for n, (length, _) in enumerate(ends)]
    pairs = zip(lone, ends, strict=True)
    work = [(one, length - count, count) for one, (length, count) in pairs]
    case = Case(SAME, 16, variant)
    whole = run_step(work, case, device)
    (chunk,) = run_step([(lone[0], 300, 30)], case, device)
    assert torch.equal(whole[0], chunk[27:])
    for name, value in (("ATTENTION_PROGRAMS", 3), ("LISTED_TILES", 16)):
        monkeypatch.setattr(paged, name, value)
        for one, other in zip(run_step(work, case, device), whole, strict=True):
            assert torch.equal(one, other), name


@pytest.mark.slow
def test_more_tiles_than_partial_results_have_room_for(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go in several launches, of 16 tiles at least, through the same memory."""
    shape, dtype = (4, 1, 16), torch.float32
    lengths = [70 + 5 * n for n in range(20)]
    work = [(sequence(n, length, shape, dtype), length - 1, 1) for n, length in enumerate(lengths)]
    whole = run_step(work, Case(SAME), device)
    monkeypatch.setattr(paged, "PARTIAL_BYTES", 1)
    for one, other in zip(run_step(work, Case(SAME), device), whole, strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 1, 64), (8, 2, 128)], ids=str)
def test_the_tiles_that_serve(shape: tuple[int, int, int], device: torch.device) -> None:
    """Over a split's edge at 512; batch_invariant gives a chunk the bits of decode."""
    one = sequence(11, 530, shape, torch.bfloat16)
    for invariant in (False, True):
        case = Case(attention_choice(shape[2], batch_invariant=invariant))
        (chunk,) = run_step([(one, 505, 20)], case, device)
        (decoded,) = run_step([(one, 513, 1)], case, device)
        assert error(decoded, one, 513) < BOUNDS[torch.bfloat16]
        assert error(chunk, one, 505) < BOUNDS[torch.bfloat16]
        if invariant:
            assert torch.equal(decoded[0], chunk[8])


def test_a_padded_decode_leaves_no_row_unwritten(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing fills its result beforehand: new memory holds not-a-number here."""
    one = sequence(12, 70, (4, 2, 64), torch.bfloat16)
    wanted = run_step([(one, 69, 1)], Case(SAME), device)[0]
    numbers = torch.tensor
    plan = DeviceAttentionPlan(
        tables=numbers([[0] * 3, [2, 0, 1], [0] * 3], dtype=torch.int32, device=device),
        query_starts=numbers([0, 1, 2], dtype=torch.int32, device=device),
        query_lens=numbers([0, 1, 0], dtype=torch.int32, device=device),
        seq_lens=numbers([0, 70, 0], dtype=torch.int32, device=device),
        few=TileList(
            numbers([1, 0, 2], dtype=torch.int32, device=device),
            numbers([0, 0, 0], dtype=torch.int32, device=device),
            queries=1,
            end=96,
        ),
        many=None,
        choice=SAME,
        block_size=32,
        group=2,
    )
    caches = []
    for rows in (one.key, one.value):
        blocks = torch.full((3, 32, 2, 64), float("nan"), dtype=rows.dtype)
        for block, begin in zip((2, 0, 1), range(0, 96, 32), strict=True):
            part = rows[begin : begin + 32]
            blocks[block, : len(part)] = part
        caches.append(blocks.flatten(0, 1).transpose(0, 1).to(device))
    query = torch.full((3, 4, 64), float("nan"), dtype=torch.bfloat16)
    query[1] = one.query[69]

    def unwritten(size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.full(size, float("nan"), dtype=dtype, device=device)

    monkeypatch.setattr(paged.torch, "empty", unwritten)
    monkeypatch.delattr(paged.torch, "zeros")
    out = paged.paged_attention(query.to(device), *caches, plan, 64**-0.5).cpu()
    assert torch.equal(out[1:2], wanted)
    assert not out[[0, 2]].any()
