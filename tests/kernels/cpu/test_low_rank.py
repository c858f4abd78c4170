"""What adapters add is summed in one order, and programs and steps that do not fit are refused;
whole models with adapters are computed in tests/worker/adapters."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.decoder_step import DecoderStep
from penstock_kernels.cpu.low_rank import (
    LowRankAdapter,
    LowRankRows,
    LowRankTargets,
    TargetFactors,
    packed_factor,
)
from penstock_kernels.cpu.matrix import MatrixKind, pack
from penstock_kernels.cpu.memory import Arena
from penstock_kernels.cpu.operands import Experts, NormWeights
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind, Program

pytestmark = pytest.mark.timeout(120)
HIDDEN, VOCAB = 40, 50
RANDOM = np.random.default_rng(3)
WEIGHT = RANDOM.standard_normal((HIDDEN, HIDDEN)).astype(np.float32)
TABLE = RANDOM.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
TARGETS = LowRankTargets([(HIDDEN, HIDDEN), None, None], 24, MatrixKind.F32)


def packed(values: np.ndarray) -> object:
    return pack("F32", values.view(np.uint8), values.shape)


def phases(**changes: object) -> tuple[Phase, ...]:
    lower = Phase(kind=PhaseKind.LOWER, source=Buffer.INPUT, width=HIDDEN, low_rank=0)
    return (
        Phase(kind=PhaseKind.EMBED, matrices=(packed(TABLE),)),
        Phase(kind=PhaseKind.MAKE_INPUT, target=Buffer.INPUT, width=HIDDEN, forms=1, waits=False),
        dataclasses.replace(lower, **changes),
        Phase(
            kind=PhaseKind.PRODUCT,
            source=Buffer.INPUT,
            matrices=(packed(WEIGHT),),
            adds=False,
            low_rank=0,
            ends_layer=True,
        ),
        Phase(kind=PhaseKind.ROWS, width=HIDDEN, waits=False),
    )


def decoder(some: tuple[Phase, ...], targets: LowRankTargets | None = TARGETS) -> Decoder:
    return Decoder(Program(some, VOCAB, targets), 16, 2, "float32", 2)


def step(rows: int, *runs: tuple[int, int, LowRankAdapter]) -> DecoderStep:
    return DecoderStep(
        tokens=np.arange(rows, dtype=np.int32) % VOCAB,
        first_row=np.array([0, rows], dtype=np.int32),
        starts=np.zeros(1, dtype=np.int32),
        tables=np.zeros(5, dtype=np.int32),
        first_block=np.zeros(1, dtype=np.int32),
        adapted=LowRankRows(runs),
    )


def _as_bf16(values: np.ndarray) -> np.ndarray:
    """Numbers that bfloat16 holds exactly."""
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def adapter(rank: int, targets: LowRankTargets = TARGETS) -> tuple[LowRankAdapter, np.ndarray]:
    down = RANDOM.standard_normal((rank, HIDDEN)).astype(np.float32)
    up = RANDOM.standard_normal((HIDDEN, rank)).astype(np.float32)
    if targets.kind is MatrixKind.BF16:
        down, up = (_as_bf16(each) for each in (down, up))
    return LowRankAdapter(targets, [TargetFactors(0, down, up)]), up.astype(float) @ down


@pytest.mark.parametrize("kind", [MatrixKind.F32, MatrixKind.BF16])
@pytest.mark.parametrize("rows", [1, 2, 3, 13, 31, 70])
def test_each_row_has_its_own(rows: int, kind: MatrixKind) -> None:
    targets = dataclasses.replace(TARGETS, kind=kind)
    made = decoder(phases(), targets)
    (one, added), (other, more) = adapter(5, targets), adapter(24, targets)
    first, last = rows // 3, rows - rows // 2
    runs = [(0, first, one)] if first else []
    runs += [(last, rows - last, other)] if last < rows else []
    wanted = np.arange(rows, dtype=np.int32)
    found = made.logits(step(rows, *runs), wanted)
    for row in range(rows):
        extra = added if row < first else more if row >= last else 0.0
        expected = (WEIGHT + extra) @ TABLE[row % VOCAB].astype(float)
        assert np.allclose(found[row], expected, rtol=0, atol=1e-3)
        alone = [(0, 1, one)] if row < first else [(0, 1, other)] if row >= last else []
        single = dataclasses.replace(
            step(1, *alone), tokens=np.array([row % VOCAB], dtype=np.int32)
        )
        assert np.array_equal(made.logits(single, wanted[:1])[0], found[row])


def test_a_step_has_nothing_of_the_one_before() -> None:
    made, (one, _) = decoder(phases()), adapter(5)
    wanted = np.arange(7, dtype=np.int32)
    plain = decoder(phases()).logits(step(7), wanted)
    adapted = made.logits(step(7, (2, 3, one)), wanted)
    assert not np.array_equal(adapted, plain)
    assert np.array_equal(made.logits(step(7), wanted), plain)


def _nearest(exact: Fraction) -> np.float32:
    """To even; by way of float64 a number could be rounded twice."""
    near = np.float32(float(exact))
    around = (near, *(np.nextafter(near, np.float32(side)) for side in (-np.inf, np.inf)))
    return min(
        around, key=lambda each: (abs(Fraction(float(each)) - exact), each.view(np.uint32) & 1)
    )


def _plus_product(total: np.float32, a: np.float32, b: np.float32, isa: str) -> np.float32:
    if isa == "portable":  # Which has no operation for both.
        return total + a * b
    return _nearest(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(total)))


def _sums(weights: np.ndarray, x: np.ndarray, isa: str) -> np.ndarray:
    """[outputs]: of the even inputs and of the odd ones, each from zero, then both together."""
    found = []
    for row in weights:
        halves = [np.float32(0), np.float32(0)]
        for at, (weight, value) in enumerate(zip(row, x, strict=True)):
            halves[at % 2] = _plus_product(halves[at % 2], weight, value, isa)
        found.append(halves[0] + halves[1])
    return np.array(found, dtype=np.float32)


@pytest.mark.parametrize("kind", [MatrixKind.F32, MatrixKind.BF16])
def test_sums_have_the_order_of_the_documentation(isa: str, kind: MatrixKind) -> None:
    targets = dataclasses.replace(TARGETS, kind=kind)
    some = tuple(
        dataclasses.replace(each, matrices=(packed(np.zeros_like(WEIGHT)),))
        if each.kind is PhaseKind.PRODUCT
        else each
        for each in phases()
    )
    made, rows = decoder(some, targets), 9
    runs, factors = [], []
    for first, rank in ((0, 1), (1, 5), (7, 24)):
        down = RANDOM.standard_normal((rank, HIDDEN)).astype(np.float32)
        up = RANDOM.standard_normal((HIDDEN, rank)).astype(np.float32)
        if kind is MatrixKind.BF16:
            down, up = _as_bf16(down), _as_bf16(up)
        end = {0: 1, 1: 7, 7: 9}[first]
        runs.append((first, end - first, LowRankAdapter(targets, [TargetFactors(0, down, up)])))
        factors += [(down, up)] * (end - first)
    found = made.logits(step(rows, *runs), np.arange(rows, dtype=np.int32))
    for row in (0, 1, 6, 8):
        down, up = factors[row]
        assert np.array_equal(_sums(up, _sums(down, TABLE[row], isa), isa), found[row])


@pytest.mark.parametrize("kind", [MatrixKind.F32, MatrixKind.BF16])
@pytest.mark.parametrize("shape", [(1, 1), (16, 2), (17, 3), (32, 40), (40, 33), (80, 64)])
def test_a_factor_lies_in_the_order_in_which_it_is_read(
    shape: tuple[int, int], kind: MatrixKind
) -> None:
    outputs, inputs = shape
    values = _as_bf16(RANDOM.standard_normal(shape).astype(np.float32))
    expected = []
    for first in range(0, outputs, 32):
        for pair in range(0, inputs, 2):
            for tile in range(first, min(first + 32, outputs), 16):
                block = np.zeros((16, 2), dtype=np.float32)
                given = values[tile : tile + 16, pair : pair + 2]
                block[: given.shape[0], : given.shape[1]] = given
                # Floats lie by inputs, halves by outputs.
                expected.append(block.T if kind is MatrixKind.F32 else block)
    numbers = np.concatenate([each.reshape(-1) for each in expected])
    factor = packed_factor(values, kind, arena=Arena())
    if kind is MatrixKind.F32:
        assert np.array_equal(factor.tiles.view(np.float32), numbers)
    else:
        assert np.array_equal(factor.tiles.view(np.uint16), numbers.view(np.uint32) >> 16)


@pytest.mark.parametrize(
    "changes",
    [
        {"low_rank": 1},
        {"low_rank": -1},
        {"width": HIDDEN - 1},
        {"source": Buffer.MIXED},
        {"source": Buffer.INNER},
        {"waits": False},
        {"kind": PhaseKind.SCALE, "target": Buffer.RESIDUAL},
    ],
    ids=str,
)
def test_phases_of_adapters_with_wrong_buffers_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"phase \d .* doesn't fit what comes before it"):
        decoder(phases(**changes))


def test_a_program_without_targets_or_without_floats() -> None:
    with pytest.raises(ValueError, match="doesn't fit"):
        decoder(phases(), None)
    embed, made, lower, *others = phases()
    with pytest.raises(ValueError, match="doesn't fit"):
        decoder((embed, dataclasses.replace(made, forms=2), lower, *others))


def by_experts(**changes: dict[str, object]) -> tuple[Phase, ...]:
    """A layer of two experts, of which a row has one. `changes`: of a phase, by its name."""
    ups, downs = ([packed(WEIGHT), packed(WEIGHT)] for _ in range(2))
    experts = Experts(active=1, ups=tuple(ups), downs=tuple(downs))
    router = packed(np.ones((2, HIDDEN), dtype=np.float32))
    of, scores = {"experts": experts, "low_rank": 0}, Buffer.SCORES
    lower = Phase(kind=PhaseKind.LOWER, source=Buffer.INPUT, width=HIDDEN, **of)
    some = {
        "embed": Phase(kind=PhaseKind.EMBED, matrices=(packed(TABLE),)),
        "made": Phase(
            kind=PhaseKind.MAKE_INPUT, target=Buffer.INPUT, width=HIDDEN, forms=1, waits=False
        ),
        "scores": Phase(
            kind=PhaseKind.PRODUCT,
            source=Buffer.INPUT,
            target=scores,
            matrices=(router,),
            adds=False,
        ),
        "route": Phase(kind=PhaseKind.ROUTE, experts=experts, forms=1),
        "first": lower,
        "up": Phase(kind=PhaseKind.EXPERTS_UP, forms=1, **of),
        "second": dataclasses.replace(lower, source=Buffer.INNER),
        "down": Phase(kind=PhaseKind.EXPERTS_DOWN, **of),
        "combine": Phase(kind=PhaseKind.COMBINE, experts=experts, ends_layer=True),
        "rows": Phase(kind=PhaseKind.ROWS, width=HIDDEN, waits=False),
    }
    changed = {name: dataclasses.replace(some[name], **given) for name, given in changes.items()}
    return tuple((some | changed).values())


EXPERTS = LowRankTargets([None, (HIDDEN, HIDDEN), (HIDDEN, HIDDEN)] * 2, 24, MatrixKind.F32)


@pytest.mark.parametrize(
    "changes",
    [
        {"first": {"source": Buffer.INNER}},
        {"second": {"source": Buffer.INPUT}},
        {"first": {"experts": None}},
        {"first": {"width": HIDDEN - 1}},
        {"first": {"low_rank": 1}},
        {"up": {"low_rank": 3}},
        {"down": {"low_rank": 3}},
        {"first": {"waits": False}},
    ],
    ids=str,
)
def test_programs_of_experts_that_do_not_fit(changes: dict[str, dict[str, object]]) -> None:
    decoder(by_experts(), EXPERTS)
    with pytest.raises(ValueError, match=r"phase \d .* doesn't fit"):
        decoder(by_experts(**changes), EXPERTS)
    with pytest.raises(ValueError, match=r"phase 4 .* doesn't fit"):
        decoder(by_experts(), TARGETS)


def test_steps_that_do_not_fit() -> None:
    made, (one, _) = decoder(phases()), adapter(5)
    wanted = np.arange(1, dtype=np.int32)
    for runs in ([(0, 4, one)], [(2, 1, one), (1, 1, one)], [(-1, 2, one)], [(0, 0, one)]):
        with pytest.raises(ValueError, match="doesn't fit 3 rows"):
            made.logits(step(3, *runs), wanted)
    other, _ = adapter(5, dataclasses.replace(TARGETS))
    with pytest.raises(ValueError, match="packed for another program"):
        made.logits(step(3, (0, 1, other)), wanted)


def test_factors_that_do_not_fit() -> None:
    def matrix(*shape: int) -> np.ndarray:
        return np.zeros(shape, dtype=np.float32)

    for down, up in (
        (matrix(4, HIDDEN - 1), matrix(HIDDEN, 4)),
        (matrix(4, HIDDEN), matrix(HIDDEN, 5)),
        (matrix(4, HIDDEN), matrix(HIDDEN + 1, 4)),
    ):
        with pytest.raises(ValueError, match="is no matrix of"):
            LowRankAdapter(TARGETS, [TargetFactors(0, down, up)])
    with pytest.raises(ValueError, match="rank 25; 24 is possible"):
        LowRankAdapter(TARGETS, [TargetFactors(0, matrix(25, HIDDEN), matrix(HIDDEN, 25))])


def test_norms_are_not_asked_for_low_ranks() -> None:
    """Only products have targets."""
    norm = NormWeights(np.ones(HIDDEN, dtype=np.float32), 1e-5)
    some = Phase(kind=PhaseKind.NORM, width=HIDDEN, norm=norm, low_rank=0)
    with pytest.raises(ValueError, match=r"\(NORM\) doesn't fit"):
        decoder((*phases()[:3], some, *phases()[3:]))
