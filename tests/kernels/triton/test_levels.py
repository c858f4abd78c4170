"""Products of experts with a CPU's bits: beside the `cpu` kernels, on the instruction sets whose
arithmetic docs/design/two-places.md says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock_kernels.cpu import library
from penstock_kernels.cpu.matrix import PackedMatrix, product
from penstock_kernels.cpu.routed_experts import BITS_OF_GROUPS, CPUExperts, use_bits_of_groups
from penstock_kernels.triton.experts.level_products import LEVEL_TYPES, expert_levels
from penstock_kernels.triton.experts.placing import place_rows
from penstock_kernels.triton.experts.sums import sum_experts
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights
from penstock_kernels.triton.matmul_tiles import EXPERTS, EXPERTS_FEW, MatmulTiles
from penstock_kernels.triton.rowwise.cpu_activations import CPU_KINDS, FUSED
from penstock_kernels.triton.rowwise.row_levels import gate_levels, row_levels
from penstock_worker.weights.repacking import repacked
from penstock_worker.weights.stored import StoredTensor
from tests.interpreted_triton import DEVICE
from tests.kernels.cpu.sources import K_HALVES, WIDTH, Source, random_source, source_of
from tests.kernels.cpu.test_same_bits import LARGEST
from tests.kernels.triton.rounding_kernels import gate_all
from tests.met import met

pytestmark = pytest.mark.timeout(300)

SUPER = ("Q4_K", "Q5_K", "Q6_K")
ODD = (0.0, -0.0, 1e-41, 3e38, np.nan, np.inf, -np.inf)


@pytest.fixture(autouse=True)
def groups() -> Iterator[str]:
    before = library.instruction_set()
    yield use_bits_of_groups()
    library.use(before)


def kept(*sources: Source) -> GGUFWeights:
    """Matrices one below the other."""
    parts = []
    for each in sources:
        outputs, inputs = each.values.shape
        stored = StoredTensor("x", (outputs, inputs), each.format, each.data)
        parts.append((stored, (range(outputs), range(inputs))))
    return repacked(parts, DEVICE, Tensor.copy_)


def on_card(
    x: np.ndarray,
    source: Source,
    *,
    tiles: MatmulTiles = EXPERTS_FEW,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    one = torch.zeros(len(x), 1, dtype=torch.int32, device=DEVICE)
    placed = place_rows(one, 1, tiles.rows)
    added = None if bias is None else torch.from_numpy(bias)[None].to(DEVICE)
    levels = row_levels(torch.from_numpy(x).to(DEVICE))
    return expert_levels(levels, kept(source), 1, placed, added, tiles=tiles).cpu().numpy()


def check(found: np.ndarray, wanted: np.ndarray) -> None:
    """The same bits; of what isn't a number, that it isn't one."""
    nan = np.isnan(wanted)
    assert np.array_equal(np.isnan(found), nan)
    assert np.array_equal(found[~nan].view(np.uint32), wanted[~nan].view(np.uint32))


def with_odd_ones(seed: int, rows: int, inputs: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((rows, inputs)).astype(np.float32)
    for row, value in enumerate(ODD):
        x[row, row * 5] = value
    x[len(ODD)] *= np.float32(1e-39)
    x[len(ODD) + 1] *= np.float32(1e-37)
    x[len(ODD) + 2] = 0.0
    return x


def alike(kind: str) -> list[str]:
    """Instruction sets that compute the same."""
    found = []
    for name in BITS_OF_GROUPS + (() if kind in SUPER else ("amx", "avx512")):
        try:
            library.use(name)
        except ValueError:
            continue
        found.append(name)
    return found


@pytest.mark.parametrize("kind", LEVEL_TYPES)
def test_a_product_has_the_bits_of_each_instruction_set(kind: str) -> None:
    inputs = 2 * max(WIDTH[kind], 64)
    source, x = random_source(kind, 21, inputs), with_odd_ones(3, 19, inputs)
    bias = np.random.default_rng(4).standard_normal(21).astype(np.float32)
    found = on_card(x, source, bias=bias)
    names = alike(kind)
    assert names
    for name in names:
        library.use(name)
        check(found, product(x, source.packed(bias=bias)))


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "MXFP4"])
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 18),
    outputs=st.integers(1, 34),
    blocks=st.integers(1, 3),
    size=st.integers(-44, 36),
    spread=st.integers(0, 8),
)
def test_any_product_has_a_cpus_bits(
    kind: str, seed: int, rows: int, outputs: int, blocks: int, size: int, spread: int
) -> None:
    inputs = blocks * WIDTH[kind]
    random_ = np.random.default_rng(seed)
    x = random_.standard_normal((rows, inputs)) * 10.0 ** random_.uniform(
        -spread, spread, (rows, inputs)
    )
    with np.errstate(all="ignore"):
        x = (x * 10.0**size).astype(np.float32)
    source = random_source(kind, outputs, inputs, seed)
    if kind in K_HALVES:
        source = source_of(kind, _with_any_scales(source, random_), outputs, inputs)
    wanted = product(x, source.packed())
    met("subnormal activations", (np.abs(x[x != 0]) < 1e-38).any())
    met("sums that aren't finite", not np.isfinite(wanted).all())
    met("ordinary rows", np.isfinite(wanted).all())
    check(on_card(x, source), wanted)


def _with_any_scales(source: Source, random_: np.random.Generator) -> np.ndarray:
    """The scales of its blocks become any finite float16, some of them subnormal."""
    size = len(source.data) * WIDTH[source.format] // source.values.size
    blocks = source.data.reshape(-1, size).copy()
    for at in K_HALVES[source.format]:
        bits = random_.integers(0, 0x7C00, len(blocks)) | random_.integers(0, 2, len(blocks)) << 15
        blocks[:, at : at + 2] = bits.astype(np.uint16)[:, None].view(np.uint8)
    return blocks


@pytest.mark.parametrize("level", [-127.0, 127.0])
@pytest.mark.parametrize("kind", LARGEST)
def test_the_largest_whole_numbers(kind: str, level: float) -> None:
    block, _ = LARGEST[kind]
    data = np.frombuffer(block * (21 * 512 // WIDTH[kind]), np.uint8)
    source = source_of(kind, data, 21, 512)
    x = np.full((3, 512), level, np.float32)
    check(on_card(x, source), product(x, source.packed()))


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0"])
def test_no_company_and_no_tile_changes_a_bit(kind: str) -> None:
    source = random_source(kind, 70, 512)
    x = np.random.default_rng(6).standard_normal((70, 512)).astype(np.float32)
    whole = on_card(x, source)
    for tiles in (EXPERTS_FEW, EXPERTS, MatmulTiles(32, 128, 64, 4, 2)):
        for some in (slice(0, 70), slice(69, 70), slice(3, 20)):
            check(on_card(x[some], source, tiles=tiles), whole[some])


def test_rows_of_other_types_are_those_of_their_numbers() -> None:
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.bfloat16, torch.float16):
        rounded = x.to(dtype).to(DEVICE)
        ours, wanted = row_levels(rounded), row_levels(rounded.float())
        strided = row_levels(rounded.repeat(1, 2)[:, :96])
        for name, tensor in vars(wanted).items():
            assert torch.equal(getattr(ours, name), tensor)
            assert torch.equal(getattr(strided, name), tensor)


def test_widths_without_whole_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="rows are 33 wide; levels need a multiple of 32"):
        row_levels(torch.zeros(1, 33))
    with pytest.raises(ValueError, match="activation 'gelu'"):
        gate_levels(torch.zeros(1, 64), "gelu")


@pytest.mark.parametrize("kind", CPU_KINDS)
def test_activations_have_a_cpus_bits(kind: str) -> None:
    """The C++ kernels' come through matrices that only hand numbers on."""
    ones = np.eye(64, dtype=np.float32)
    gates, ups = (source_of("F32", part.copy(), 32, 64) for part in (ones[:32], ones[32:]))
    downs = source_of("F32", ones[:, :32].copy(), 64, 32)
    cpu = CPUExperts(
        gates=(gates.packed(),),
        ups=(ups.packed(),),
        downs=(downs.packed(),),
        active=1,
        activation=kind,
    )
    random_ = np.random.default_rng(5)
    x = (random_.standard_normal((64, 64)) * 10.0 ** random_.uniform(-4, 2, (64, 64))).astype("f4")
    x[0, :6] = 0.0, 87.0, -87.0, 88.5, -88.5, 1e-30
    chosen = np.zeros((64, 1), np.int32)
    wanted = cpu(x, chosen, np.ones((64, 1), np.float32))[:, :32]
    gate, up = (torch.from_numpy(part.copy()).to(DEVICE) for part in (x[:, :32], x[:, 32:]))
    out = torch.empty(64, 32, device=DEVICE)
    gate_all[(1,)](gate, up, out, kind, 64 * 32, enable_fp_fusion=FUSED)
    # What C++ adds zeros to has no sign of its own.
    check(out.cpu().numpy() + np.float32(0), wanted + np.float32(0))


COUNT, ACTIVE, WIDE, INNER = 5, 2, 256, 64


def experts_of(
    kinds: tuple[str, str], *, bias: bool
) -> tuple[list[list[Source]], list[np.ndarray] | None]:
    """Gates, ups and downs of each expert; and what is added to their outputs, or None."""
    up, down = kinds
    shapes = ((up, INNER, WIDE), (up, INNER, WIDE), (down, WIDE, INNER))
    sources = [
        [random_source(*shape, seed=10 * which + number) for number in range(COUNT)]
        for which, shape in enumerate(shapes)
    ]
    if not bias:
        return sources, None
    drawn = np.random.default_rng(8).standard_normal
    return sources, [drawn((COUNT, shape[1])).astype(np.float32) for shape in shapes]


def packed(sources: list[Source], biases: np.ndarray | None) -> tuple[PackedMatrix, ...]:
    each = [None] * COUNT if biases is None else list(biases)
    return tuple(one.packed(bias=bias) for one, bias in zip(sources, each, strict=True))


@pytest.mark.parametrize(
    ("kinds", "activation", "bias"),
    [
        (("Q4_K", "Q8_0"), "silu", False),
        (("Q6_K", "Q4_0"), "gelu_tanh", False),
        (("Q8_0", "Q8_0"), "relu2", False),
        (("MXFP4", "MXFP4"), "clamped_swiglu", True),
    ],
)
def test_experts_on_the_card_are_those_of_the_cpu(
    kinds: tuple[str, str], activation: str, bias: bool
) -> None:
    """From rows to the sum over a row's experts; some rows aren't finite."""
    assert activation in CPU_KINDS
    (gates, ups, downs), biases = experts_of(kinds, bias=bias)
    of: Sequence[np.ndarray | None] = [None] * 3 if biases is None else biases
    cpu = CPUExperts(
        gates=packed(gates, of[0]),
        ups=packed(ups, of[1]),
        downs=packed(downs, of[2]),
        active=ACTIVE,
        activation=activation,
        threads=2,
    )
    x = with_odd_ones(3, 29, WIDE)
    x[10:] *= np.float32(3)
    random_ = np.random.default_rng(2)
    chosen = np.sort(random_.permuted(np.tile(np.arange(COUNT), (29, 1)), axis=1)[:, :ACTIVE])
    chosen = np.ascontiguousarray(chosen.astype(np.int32))
    shares = random_.random((29, ACTIVE)).astype(np.float32)

    pairs = torch.from_numpy(chosen).to(DEVICE)
    placed = place_rows(pairs, COUNT, EXPERTS_FEW.rows)
    stacked = [each for pair in zip(gates, ups, strict=True) for each in pair]
    added: list[Tensor | None] = [None, None]
    if biases is not None:
        both_of = np.concatenate(biases[:2], 1)
        added = [torch.from_numpy(each).to(DEVICE) for each in (both_of, biases[2])]
    rows = row_levels(torch.from_numpy(x).to(DEVICE))
    both = expert_levels(rows, kept(*stacked), COUNT, placed, added[0], tiles=EXPERTS_FEW)
    inner = gate_levels(both, activation)
    down = expert_levels(inner, kept(*downs), COUNT, placed, added[1], tiles=EXPERTS_FEW)
    found = sum_experts(down, torch.from_numpy(shares).to(DEVICE)).cpu().numpy()
    wanted = cpu(x, chosen, shares)
    assert np.isfinite(wanted).any(axis=1).sum() > 20
    check(found, wanted)
    check(cpu(x[4:9], chosen[4:9], shares[4:9]), wanted[4:9])
