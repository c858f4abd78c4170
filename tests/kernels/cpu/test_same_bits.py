"""AVX-512 without units for bfloat16, AVX-VNNI and NEON have the bits of AVX2, and so has AMX where
neither operand is bfloat16, nor a matrix one of the K-quants that it multiplies by super-groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from penstock_kernels.cpu import library
from penstock_kernels.cpu.decoder import CACHE_KINDS
from penstock_kernels.cpu.matrix import LEVELS_BLOCK, MatrixKind, PackedMatrix, pack_levels, product
from penstock_kernels.cpu.sampler import Row, sample, uniform
from tests.kernels.cpu.slow import K_QUANTS
from tests.kernels.cpu.slow_decoder import Sizes, SlowDecoder
from tests.kernels.cpu.slow_recurrent import SlowRecurrent
from tests.kernels.cpu.sources import WAYS, WIDTH, name_of, random_source, source_of
from tests.kernels.cpu.steps import Run, random_steps, random_tokens
from tests.kernels.cpu.test_entries import CASES as ENTRIES
from tests.kernels.cpu.test_entries import Model
from tests.kernels.cpu.test_mechanisms import MODELS
from tests.kernels.cpu.test_mixing import computed, mixing, program
from tests.kernels.cpu.test_recurrent import SHAPES

ODD = (0.0, -0.0, 1e-41, 3e38, np.nan, np.inf)


LIKE_AVX2 = ("avx512vnni", "avxvnni", "neoni8mm", "neon")
"""Both families of processors meet where one is emulated (emulated/machine.py)."""


def usable(name: str) -> bool:
    try:
        library.use(name)
    except ValueError:
        return False
    return True


@pytest.fixture(autouse=True)
def alike(loaded: None) -> Iterator[list[str]]:
    """The members of LIKE_AVX2 that this processor has."""
    before = library.instruction_set()
    its = library.bits() if usable("avx2") else None
    found = [name for name in LIKE_AVX2 if usable(name) and library.bits() == its]
    if not found:
        library.use(before)
        pytest.skip(f"here is no avx2, or none of {', '.join(LIKE_AVX2)}")
    yield found
    library.use(before)


def with_amx(alike: list[str], kind: MatrixKind) -> list[str]:
    of_its_own = kind is MatrixKind.BF16 or kind in K_QUANTS
    return alike if of_its_own or not usable("amx") else [*alike, "amx"]


def check(alike: list[str], compute: Callable[[], np.ndarray]) -> None:
    library.use("avx2")
    one = np.ascontiguousarray(compute())
    nan = np.isnan(one)
    for name in alike:
        library.use(name)
        other = np.ascontiguousarray(compute())
        assert np.array_equal(np.isnan(other), nan), name
        assert np.array_equal(one[~nan].view(np.uint32), other[~nan].view(np.uint32)), name


def kind_of(packed: PackedMatrix) -> MatrixKind:
    return MatrixKind(packed.struct.kind)


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_products_have_the_same_bits_on_all_instruction_sets(
    alike: list[str], way: tuple[str, MatrixKind | None]
) -> None:
    format, kind = way
    inputs = 3 * WIDTH[format] if WIDTH[format] > 1 else 75
    packed = random_source(format, 50, inputs).packed(kind=kind)
    x = np.random.default_rng(3).standard_normal((19, inputs)).astype(np.float32)
    for row, value in enumerate(ODD):
        x[row, row] = value
    x[len(ODD)], x[len(ODD) + 1] = 1e-38, -3e-37
    check(with_amx(alike, kind_of(packed)), lambda: product(x, packed))


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_tiles(alike: list[str], way: tuple[str, MatrixKind | None]) -> None:
    format, kind = way
    source = random_source(format, 21, 2 * WIDTH[format] if WIDTH[format] > 1 else 75)
    library.use("avx2")
    one = source.packed(kind=kind)
    for name in alike:
        library.use(name)
        assert np.array_equal(source.packed(kind=kind).tiles, one.tiles), name


def test_draws(alike: list[str]) -> None:
    """Numbers are drawn alike, and tokens by them, with the tokens' log-probabilities."""
    seeds, places = [0, 5, 2**64 - 1] * 30, list(range(90))
    logits = np.random.default_rng(2).standard_normal((90, 1999)).astype(np.float32) * 4

    def drawn() -> np.ndarray:
        return uniform(seeds, places, places[::-1])

    def sampled() -> np.ndarray:
        cuts = [Row(top_k=30), Row(top_p=0.7), Row(min_p=0.05, temperature=3.0)] * 30
        draws = zip(cuts, drawn().tolist(), strict=True)
        result = sample(logits, [cut._replace(draw=draw, logprobs=3) for cut, draw in draws])
        likely = np.array(result.alternatives, np.float32).ravel()
        return np.concatenate([result.tokens.astype(np.float32), result.logprobs, likely])

    check(alike, lambda: drawn().view(np.uint32).astype(np.float32))
    check(alike, sampled)


@pytest.mark.parametrize("name", ENTRIES)
def test_entries(alike: list[str], name: str) -> None:
    model = Model(ENTRIES[name])
    for cache in ("float32", "bfloat16"):
        counts = [model.case.length - 5, 5]
        check(alike, lambda cache=cache, counts=counts: model.computed(counts, cache=cache))


def test_mixed_residuals(alike: list[str]) -> None:
    of = program([mixing(4, 72, 4, 1), mixing(4, 72, 4, 2)], mixing(4, 72, 0, 3))
    numbers = np.random.default_rng(1).standard_normal((33, 3 * 72)).astype(np.float32)
    check(alike, lambda: computed(of, numbers, [33], 2))


ROWS = (15, 16, 23, 24, 25, 31, 32, 33, 55, 64, 77)
"""AMX multiplies whole numbers of 24 to 32 at a time, some of them twice."""


@pytest.mark.parametrize("way", WAYS, ids=name_of)
@pytest.mark.parametrize("groups", [1, 2, 3, 4, 5, 8, 9])
def test_numbers_of_rows_and_of_groups(
    alike: list[str], way: tuple[str, MatrixKind | None], groups: int
) -> None:
    """AMX's whole numbers become floats four groups of 32 inputs at a time."""
    format, kind = way
    width = max(WIDTH[format], 32)
    inputs = width * max(groups * 32 // width, 1) - (WIDTH[format] == 1) * 5
    bias = np.random.default_rng(groups).standard_normal(21).astype(np.float32)
    packed = random_source(format, 21, inputs).packed(kind=kind, bias=bias)
    x = np.random.default_rng(5).standard_normal((ROWS[-1], inputs)).astype(np.float32)
    for row, value in enumerate(ODD):
        x[row * 5, row] = value
    all_alike = with_amx(alike, kind_of(packed))
    for rows in ROWS:
        check(all_alike, lambda rows=rows: product(x[:rows], packed))
        check(all_alike, lambda rows=rows: product(x[:rows], packed, two_parts=True))


@pytest.mark.parametrize("level", [-127, 127])
def test_the_largest_whole_numbers(alike: list[str], level: int) -> None:
    """Levels go up to 255, of 8 bits with a sign, and activations as far as they can."""
    for kind, levels in ((MatrixKind.U8H, 255), (MatrixKind.S8H, 0), (MatrixKind.S8H, 255)):
        blocks = np.zeros((21, 5), LEVELS_BLOCK)
        blocks["scales"], blocks["minima"], blocks["levels"] = 1.0, 0.5, levels
        packed = pack_levels([blocks], (21, 160), kind=kind)
        weight = levels - 128 if kind == MatrixKind.S8H else levels + 0.5
        for rows in (1, 32):
            x = np.full((rows, 160), level, dtype=np.float32)
            check(with_amx(alike, kind), lambda packed=packed, x=x: product(x, packed))
            assert (product(x, packed) == 160.0 * level * weight).all()


ONE = np.float16(1).tobytes()
LARGEST = {
    "Q5_0": (ONE + b"\xff" * 20, 15.0),
    "Q5_1": (ONE + ONE + b"\xff" * 20, 32.0),
    "Q5_K": (ONE + bytes(2) + b"\xff" * 4 + bytes(4) + b"\x0f" * 4 + b"\xff" * 160, None),
    "Q6_K": (b"\xff" * 192 + b"\x01" * 16 + ONE, 31.0),
}
"""Blocks whose levels have all bits, and the weight that they are."""


@pytest.mark.parametrize("level", [-127, 127])
@pytest.mark.parametrize("format", LARGEST)
def test_the_largest_levels_of_five_and_six_bits(alike: list[str], format: str, level: int) -> None:
    """AVX2 adds their products up in 16 bits, of a few at a time."""
    block, weight = LARGEST[format]
    count = 21 * 512 // WIDTH[format]
    source = source_of(format, np.frombuffer(block * count, np.uint8), 21, 512)
    packed = source.packed()
    for rows in (1, 32):
        x = np.full((rows, 512), level, dtype=np.float32)
        check(with_amx(alike, kind_of(packed)), lambda x=x: product(x, packed))
        true = x.astype(np.float64) @ source.values.T.astype(np.float64)
        assert np.allclose(product(x, packed), true, rtol=1e-5)
    if weight is not None:
        assert (source.values == weight).all()


def check_steps(alike: list[str], sizes: Sizes, **fields: object) -> None:
    model = SlowDecoder(dataclasses.replace(sizes, **fields))
    lengths = [1, 19, 290]
    sequences = [random_tokens(model.sizes.vocab, length, length) for length in lengths]

    def computed() -> np.ndarray:
        run = Run(model.packed(num_blocks=40), sequences)
        run.steps(random_steps(lengths, 1, largest=100))
        return np.concatenate([run.of(which) for which in range(len(lengths))])

    check(alike, computed)


@pytest.mark.parametrize("name", ["soft cap in a window", "experts", "gelu by tanh", "layer norms"])
@pytest.mark.parametrize("cache", CACHE_KINDS)
def test_steps(alike: list[str], name: str, cache: str) -> None:
    check_steps(alike, MODELS[name], cache=cache)


@pytest.mark.parametrize("cache", CACHE_KINDS)
@pytest.mark.parametrize("head_dim", [48, 256])
def test_sizes_of_heads(alike: list[str], head_dim: int, cache: str) -> None:
    check_steps(alike, MODELS["window of 257, then all"], cache=cache, head_dim=head_dim)


@pytest.mark.parametrize("name", SHAPES)
def test_scans(alike: list[str], name: str) -> None:
    slow = SlowRecurrent(SHAPES[name])
    slow.features[:6, ::3] = np.array(ODD, dtype=np.float32)[:, None]
    sequences = [random_tokens(90, length, length) for length in (40, 3)]
    check(
        alike, lambda: np.concatenate(slow.run(2, finished=True).step(list(enumerate(sequences))))
    )
