"""A program may lack some experts, whose results an exchange brings; whole models over ranks are
computed in tests/worker/parallel."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.matrix import PackedMatrix, pack
from penstock_kernels.cpu.operands import Experts
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind, Program
from tests.kernels.cpu.test_low_rank import step

HIDDEN, INNER, VOCAB, ROWS = 48, 40, 50, 23
RANDOM = np.random.default_rng(5)
TABLE, ROUTER, FIRST_UP, OTHER_UP, FIRST_DOWN, OTHER_DOWN = (
    RANDOM.standard_normal(shape).astype(np.float32)
    for shape in ((VOCAB, HIDDEN), (2, HIDDEN), *2 * [(INNER, HIDDEN)], *2 * [(HIDDEN, INNER)])
)
COLUMNS = range(16, 48)
"""What this rank adds."""


def packed(values: np.ndarray) -> PackedMatrix:
    return pack("F32", values.view(np.uint8), values.shape)


def of_other(rows: np.ndarray) -> np.ndarray:
    """What the expert of another rank gives, by float64."""
    inner = OTHER_UP.astype(float) @ rows.T
    return (OTHER_DOWN.astype(float) @ (inner / (1 + np.exp(-inner)))).T


class Exchanged:
    """Brings the other expert's results. places: where each expert's begin, as it was told."""

    def __init__(self) -> None:
        self.places: list[int] = []

    def __call__(self, values: np.ndarray, first: np.ndarray) -> None:
        self.places = first.tolist()
        rows = TABLE[:ROWS].astype(float)
        theirs = rows[(rows @ ROUTER.T).argmax(1) == 1]
        values[first[1] : first[2]] = of_other(theirs)


def phases(exchange: Exchanged, /, **changes: dict[str, object]) -> tuple[Phase, ...]:
    """A layer of two experts, of which a row has one. `changes`: of a phase, by its name."""
    experts = Experts(
        active=1,
        ups=(packed(FIRST_UP), packed(FIRST_UP).elsewhere()),
        downs=(packed(FIRST_DOWN), packed(FIRST_DOWN).elsewhere()),
    )
    some = {
        "embed": Phase(kind=PhaseKind.EMBED, matrices=(packed(TABLE),)),
        "made": Phase(
            kind=PhaseKind.MAKE_INPUT, target=Buffer.INPUT, width=HIDDEN, forms=1, waits=False
        ),
        "scores": Phase(
            kind=PhaseKind.PRODUCT,
            source=Buffer.INPUT,
            target=Buffer.SCORES,
            matrices=(packed(ROUTER),),
            adds=False,
        ),
        "route": Phase(kind=PhaseKind.ROUTE, experts=experts, forms=1),
        "up": Phase(kind=PhaseKind.EXPERTS_UP, experts=experts, forms=1),
        "down": Phase(kind=PhaseKind.EXPERTS_DOWN, experts=experts),
        "exchange": Phase(
            kind=PhaseKind.EXCHANGE,
            width=HIDDEN,
            part=True,
            experts=experts,
            exchange_results=exchange,
        ),
        "combine": Phase(
            kind=PhaseKind.COMBINE,
            experts=experts,
            part=True,
            first=COLUMNS.start,
            columns=len(COLUMNS),
            width=HIDDEN,
            ends_layer=True,
        ),
        "rows": Phase(kind=PhaseKind.ROWS, width=HIDDEN, waits=False),
    }
    changed = {name: dataclasses.replace(some[name], **given) for name, given in changes.items()}
    return tuple((some | changed).values())


def decoder(some: tuple[Phase, ...]) -> Decoder:
    return Decoder(Program(some, VOCAB), 16, 2, "float32", 2)


def test_results_of_an_absent_expert_are_the_exchanges() -> None:
    exchange = Exchanged()
    found = decoder(phases(exchange)).logits(step(ROWS), np.arange(ROWS, dtype=np.int32))
    rows = TABLE[:ROWS].astype(float)
    chosen = (rows @ ROUTER.T).argmax(1)
    assert exchange.places == [0, int((chosen == 0).sum()), ROWS]
    assert 0 < exchange.places[1] < ROWS
    inner = rows @ FIRST_UP.T
    own = (inner / (1 + np.exp(-inner))) @ FIRST_DOWN.T
    added = np.where(chosen[:, None] == 0, own, of_other(rows))
    mine = slice(COLUMNS.start, COLUMNS.stop)
    assert np.allclose(found[:, mine], (rows + added)[:, mine], rtol=0, atol=1e-3)
    assert np.array_equal(found[:, : COLUMNS.start], TABLE[:ROWS, : COLUMNS.start])


WITHOUT_UP = Experts(
    active=1,
    ups=(packed(FIRST_UP), packed(FIRST_UP).elsewhere()),
    downs=(packed(FIRST_DOWN), packed(OTHER_DOWN)),
)
OF_ANOTHER_SHAPE = dataclasses.replace(
    WITHOUT_UP, downs=(packed(FIRST_DOWN), packed(ROUTER).elsewhere())
)


@pytest.mark.parametrize(
    "changes",
    [
        {"up": {"experts": WITHOUT_UP}},
        {"up": {"experts": OF_ANOTHER_SHAPE}},
        {"exchange": {"width": HIDDEN - 16}},
        {"exchange": {"source": Buffer.SCORES}},
        {"combine": {"columns": HIDDEN}},
        {"combine": {"columns": -16}},
        {"combine": {"part": False, "first": 0}},
    ],
    ids=lambda changes: str([(name, *given) for name, given in changes.items()]),
)
def test_programs_that_do_not_fit(changes: dict[str, dict[str, object]]) -> None:
    with pytest.raises(ValueError, match=r"phase \d .* doesn't fit"):
        decoder(phases(Exchanged(), **changes))
