"""Residuals that halves of layers mix, beside float64; and experts that a token's id chooses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec
from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.decoder_step import GivenRows
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind, Program
from penstock_kernels.cpu.streams import CPUMixing
from tests.kernels.cpu.slow_decoder import Sizes, SlowDecoder
from tests.kernels.cpu.steps import Run, Work, random_tokens
from tests.kernels.cpu.test_arguments import changed

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("isa")]

ROWS, EPS, NORM_EPS = 70, 1e-3, 1e-5


def mixing(count: int, width: int, rounds: int, seed: int) -> CPUMixing:
    random_ = np.random.default_rng(seed)
    logits = count * (2 + count) if rounds else count

    def made(*shape: int) -> np.ndarray:
        return random_.standard_normal(shape).astype(np.float32)

    return CPUMixing(
        count=count,
        width=width,
        rounds=rounds,
        eps=EPS,
        norm_eps=NORM_EPS,
        product=made(logits, count * width) / np.float32(8),
        base=made(logits),
        scales=made(3 if rounds else 1),
    )


def program(halves: list[CPUMixing], end: CPUMixing) -> Program:
    """Each half gives numbers that the step brings; what is read in the end is the result."""
    width = end.width

    def taken(target: Buffer, number: int) -> Phase:
        return Phase(
            kind=PhaseKind.TAKE_ROWS, target=target, first=number * width, width=width, adds=False
        )

    phases = [
        taken(Buffer.RESIDUAL, 0),
        Phase(kind=PhaseKind.SPREAD, width=width, mixing=end),
    ]
    for number, half in enumerate([*halves, end], 1):
        logits = Phase(kind=PhaseKind.MIX_LOGITS, target=Buffer.SCORES, width=width, mixing=half)
        phases += [
            logits,
            replace(logits, kind=PhaseKind.MIX_READ, source=Buffer.SCORES, target=Buffer.RESIDUAL),
        ]
        if half is not end:
            # What a half gives depends on what it has read.
            given = replace(taken(Buffer.RESIDUAL, number), adds=True)
            written = Phase(
                kind=PhaseKind.MIX_WRITE, source=Buffer.RESIDUAL, width=width, mixing=half
            )
            phases += [given, written]
    phases.append(Phase(kind=PhaseKind.ROWS, width=width, waits=False))
    return Program(tuple(phases), vocab=1)


class Given(Run):
    """A sequence whose rows have numbers, and no tokens to speak of."""

    numbers: np.ndarray

    def _given(self, work: Work, starts: list[int]) -> GivenRows:
        [(_, count)], [start] = work, starts
        rows = np.arange(count, dtype=np.int32)
        return GivenRows(rows=rows, numbers=self.numbers[start : start + count])


def computed(of: Program, numbers: np.ndarray, counts: list[int], threads: int) -> np.ndarray:
    decoder = Decoder(of, 16, 40, cache="float32", threads=threads)
    run = Given(decoder, [[0] * len(numbers)])
    run.numbers = numbers
    return run.steps([(0, count)] for count in counts).of(0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = 1 / (1 + np.exp(-x))
    return found


def weights(of: CPUMixing, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of what is read and of what is added, and the matrix. residuals: [rows, count,
    width]."""
    flat = residuals.reshape(len(residuals), -1)
    root = np.sqrt((flat * flat).mean(-1, keepdims=True) + of.norm_eps)
    count, found = of.count, flat / root @ of.product.T.astype(np.float64)
    sizes = (count, count, count * count)[: len(of.scales)]
    found = found * np.repeat(of.scales, sizes) + of.base
    read = sigmoid(found[:, :count]) + of.eps
    if not of.rounds:
        return read, read, read
    square = found[:, 2 * count :].reshape(-1, count, count)
    square = np.exp(square) / np.exp(square).sum(2, keepdims=True) + of.eps
    for number in range(of.rounds):
        if number:
            square = square / (square.sum(2, keepdims=True) + of.eps)
        square = square / (square.sum(1, keepdims=True) + of.eps)
    return read, 2 * sigmoid(found[:, count : 2 * count]), square


def slow(halves: list[CPUMixing], end: CPUMixing, numbers: np.ndarray) -> np.ndarray:
    first, *given = np.split(numbers.astype(np.float64), len(halves) + 1, -1)
    residuals = np.repeat(first[:, None], end.count, 1)
    for half, more in zip(halves, given, strict=True):
        read, added, square = weights(half, residuals)
        gives = np.einsum("rk,rkw->rw", read, residuals) + more
        mixed = np.einsum("rkn,rkw->rnw", square, residuals)
        residuals = mixed + added[:, :, None] * gives[:, None]
    found: np.ndarray = np.einsum("rk,rkw->rw", weights(end, residuals)[0], residuals)
    return found


@pytest.mark.parametrize(("count", "width"), [(4, 64), (3, 72), (1, 24), (5, 35)])
def test_residuals_are_mixed(count: int, width: int) -> None:
    halves = [mixing(count, width, rounds, rounds) for rounds in (4, 1, 20)]
    end = mixing(count, width, 0, 7)
    numbers = np.random.default_rng(1).standard_normal((ROWS, 4 * width)).astype(np.float32)
    of = program(halves, end)
    found = computed(of, numbers, [ROWS], 2)
    assert np.allclose(found, slow(halves, end, numbers), rtol=1e-4, atol=1e-4)
    for counts, threads in (([1] * ROWS, 2), ([3, 60, 7], 1)):
        assert np.array_equal(computed(of, numbers, counts, threads), found)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (PhaseKind.SPREAD, {"mixing": None}),
        (PhaseKind.SPREAD, {"width": 65}),
        (PhaseKind.MIX_LOGITS, {"target": Buffer.STREAMS}),
        (PhaseKind.MIX_READ, {"source": Buffer.INPUT}),
        (PhaseKind.MIX_READ, {"source": Buffer.RESIDUAL}),
        (PhaseKind.MIX_WRITE, {"mixing": mixing(4, 64, 0, 1)}),
        (PhaseKind.MIX_WRITE, {"mixing": mixing(5, 64, 2, 1)}),
    ],
    ids=str,
)
def test_phases_of_mixed_streams_with_wrong_sizes_are_refused(
    kind: PhaseKind, fields: dict[str, object]
) -> None:
    of = program([mixing(4, 64, 2, 1)], mixing(4, 64, 0, 2))
    with pytest.raises(ValueError, match=rf"\({kind.name}\) doesn't fit"):
        Decoder(changed(of, kind, **fields), 16, 1, cache="float32", threads=1)


def test_arrays_of_another_shape() -> None:
    with pytest.raises(ValueError, match="coefficients of streams"):
        replace(mixing(4, 64, 2, 1), base=np.zeros(4, np.float32)).struct()


SETS = np.array([[0, 2, 3], [1, 4, 5]])


def test_a_tokens_id_chooses_its_experts() -> None:
    """In a layer's rows, those are the bits that other experts' scores can't have changed: of
    models in which corrections leave the router no choice, each has the bits of its tokens."""
    said = ExpertsSpec(count=6, active=3, inner=90, router="sqrt_softplus", correction=True)
    layer = LayerSpec(feed_forward=FeedForwardSpec(experts=said))
    model = SlowDecoder(Sizes(specs=(layer,), layers=1))
    tokens, alike = random_tokens(model.sizes.vocab, 40, 1), []
    for experts in SETS:
        model.layers[0].correction = np.zeros(6, np.float32)
        model.layers[0].correction[experts] = 100
        alike.append(Run(model.packed(num_blocks=4), [tokens]).steps([[(0, 40)]]).of(0))
    decoder = model.packed(num_blocks=4, threads=2)
    found = next(each.experts for each in decoder.program.phases if each.experts is not None)
    # Of ids beyond the table, the first one's experts.
    table = SETS[np.arange(model.sizes.vocab - 3) % 2].astype(np.int32)
    by_token = changed(decoder.program, PhaseKind.ROUTE, experts=replace(found, by_token=table))
    decoder = Decoder(by_token, 16, 4, cache=decoder.cache, threads=2)
    chosen = Run(decoder, [tokens]).steps([[(0, 25)], [(0, 14)], [(0, 1)]]).of(0)
    which = np.array([0 if each >= len(table) else each % 2 for each in tokens])
    assert set(which) == {0, 1}
    assert not np.array_equal(alike[0], alike[1])
    assert np.array_equal(chosen, np.where(which[:, None] == 0, alike[0], alike[1]))
