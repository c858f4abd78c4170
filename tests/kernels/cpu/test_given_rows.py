"""Rows that aren't as their tokens say: numbers of their own, positions of three numbers, and spans
whose rows see one another; against float64, and their bits in any company and any chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.model.attention_spec import AttentionSpec
from penstock.model.layer_spec import LayerSpec
from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.decoder_step import GivenRows
from penstock_kernels.cpu.matrix import MatrixKind
from tests.kernels.cpu.slow_given import SeeingSizes, SlowGiven, SlowSeeing, joined
from tests.kernels.cpu.steps import Run, Work, chunks, random_tokens
from tests.kernels.cpu.test_decoder import distance

pytestmark = pytest.mark.timeout(240)
each_isa = pytest.mark.usefixtures("isa")

WINDOW = LayerSpec(attention=AttentionSpec(window=21))
BASE = SeeingSizes(heads=6, kv_heads=2, hidden=72, inner=100, positions=700, layers=2)
AXES = (0, 1, 2, 1, 2, 0, 2, 0)
SPANS = ((3, 20), (201, 90))
"""Offset and length; the second one crosses a split of the keys."""
LENGTH = 330
MODELS = {
    "rows": BASE,
    "rows in a window": replace(BASE, specs=(WINDOW, LayerSpec()), embedding_multiplier=3.0),
    "turns": replace(BASE, axes=AXES),
    "turns, norms over all heads": replace(
        BASE, axes=AXES, specs=(LayerSpec(attention=AttentionSpec(norm="whole")),)
    ),
    "turns in part": replace(BASE, axes=AXES[:6], head_dim=32, rotations=(12,)),
    "spans": BASE,
    "spans in a window": replace(BASE, specs=(WINDOW, LayerSpec())),
    "joined spans": BASE,
    "joined spans in a window": replace(BASE, specs=(WINDOW, LayerSpec())),
    "joined spans, capped": replace(
        BASE, specs=(LayerSpec(attention=AttentionSpec(soft_cap=4.0)),)
    ),
    "spans in a window alone": replace(BASE, specs=(WINDOW, LayerSpec()), in_windows=True),
}


def given_of(name: str, length: int, spans: Sequence[tuple[int, int]], seed: int = 0) -> SlowGiven:
    random_ = np.random.default_rng(seed)
    places = np.concatenate([np.arange(first, first + count) for first, count in spans])
    given = SlowGiven(
        places, random_.standard_normal((len(places), BASE.hidden)).astype(np.float32)
    )
    if name.startswith("turns"):
        return replace(given, turns=random_.integers(0, BASE.positions, (3, length)))
    if name.startswith("spans"):
        seen = np.arange(length)
        for first, count in spans:
            seen[first : first + count] = first + count - 1
        return replace(given, last_seen=seen)
    if name.startswith("joined"):
        seen, between = np.arange(length), np.zeros(length, bool)
        inside = slice(places[0], places[-1] + 1)
        seen[inside], between[inside] = places[-1], True
        between[places] = False
        return replace(given, last_seen=seen, between=between)
    return given


class GivenRun(Run):
    """A Run whose sequences have such rows."""

    def __init__(
        self, decoder: Decoder, sequences: list[list[int]], given: list[SlowGiven], seed: int = 0
    ) -> None:
        super().__init__(decoder, sequences, seed)
        self.given = given

    def _given(self, work: Work, starts: list[int]) -> GivenRows:
        pairs = zip(work, starts, strict=True)
        return joined([(self.given[which], start, count) for (which, count), start in pairs])


def computed(model: SlowSeeing, given: SlowGiven, steps: list[Work], **more: Any) -> np.ndarray:
    tokens = random_tokens(model.sizes.vocab, LENGTH, 1)
    run = GivenRun(model.packed(num_blocks=30, **more), [tokens], [given])
    run.steps(steps)
    return run.of(0)


@each_isa
@pytest.mark.parametrize("name", MODELS)
def test_against_float64(name: str) -> None:
    model, given = SlowSeeing(MODELS[name]), given_of(name, LENGTH, SPANS)
    plain = model.logits(random_tokens(model.sizes.vocab, LENGTH, 1))
    model.given = given
    true = model.logits(random_tokens(model.sizes.vocab, LENGTH, 1))
    assert distance(true, plain) > 0.1, "it does make a difference"
    steps: list[Work] = [[(0, 200)], [(0, 110)], [(0, 20)]]
    if name.startswith("joined"):
        steps = [[(0, 2)], [(0, 308)], [(0, 20)]]
    ours = computed(model, given, steps, threads=2)
    assert distance(ours, true) < 3e-5


@each_isa
@pytest.mark.parametrize("cache", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", ["turns", "spans in a window", "joined spans"])
def test_in_other_caches(name: str, cache: str) -> None:
    """The bound is for roundings that fall the other way, as in test_decoder."""
    model = SlowSeeing(replace(MODELS[name], cache=cache))
    model.given = given_of(name, LENGTH, SPANS)
    true = model.logits(random_tokens(model.sizes.vocab, LENGTH, 1))
    ours = computed(model, model.given, [[(0, LENGTH)]], threads=2)
    assert distance(ours, true) < 0.04


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint32)


@each_isa
@pytest.mark.parametrize(
    "name", ["rows in a window", "turns", "spans", "spans in a window", "spans in a window alone"]
)
@pytest.mark.parametrize("kind", [MatrixKind.F32, MatrixKind.S8H])
def test_any_company_any_chunks(name: str, kind: MatrixKind) -> None:
    """No chunk ends within a span, where its rows see one another."""
    cache = "bfloat16" if kind is MatrixKind.F32 else "int8"
    model = SlowSeeing(replace(MODELS[name], kind=kind, cache=cache))
    given = given_of(name, LENGTH, SPANS)
    alone = bits(computed(model, given, [[(0, LENGTH)]]))
    cuts: list[Work] = [[(0, 2)], [(0, 21)], [(0, 170)], [(0, 98)], *chunks(0, LENGTH - 291, 1)]
    for threads in (1, 2):
        assert np.array_equal(bits(computed(model, given, cuts, threads=threads)), alone)
    other = given_of(name, 60, [(10, 40)], seed=1)
    sequences = [random_tokens(model.sizes.vocab, n, s) for n, s in ((LENGTH, 1), (60, 2))]
    decoder = model.packed(num_blocks=30, block_size=32, threads=2)
    run = GivenRun(decoder, sequences, [given, other], 3)
    run.steps([[(1, 55), (0, 23)], [(0, 178), (1, 1)], [(1, 1), (0, 90)], [(0, 39), (1, 3)]])
    assert np.array_equal(bits(run.of(0)), alone)


@each_isa
@pytest.mark.parametrize("name", ["joined spans", "joined spans in a window"])
@pytest.mark.parametrize("kind", [MatrixKind.F32, MatrixKind.S8H])
def test_joined_spans_in_any_company_and_any_chunks(name: str, kind: MatrixKind) -> None:
    """No chunk ends between the first row of the first span and the last row of the last. Spans
    that are not joined, beside them, have the bits of a batch in which none are."""
    cache = "bfloat16" if kind is MatrixKind.F32 else "int8"
    model = SlowSeeing(replace(MODELS[name], kind=kind, cache=cache))
    given = given_of(name, LENGTH, SPANS)
    alone = bits(computed(model, given, [[(0, LENGTH)]]))
    cuts: list[Work] = [[(0, 2)], [(0, 289)], [(0, 7)], *chunks(0, LENGTH - 298, 1)]
    for threads in (1, 2):
        assert np.array_equal(bits(computed(model, given, cuts, threads=threads)), alone)
    apart = given_of("spans", 60, [(10, 40)], seed=1)
    tokens = [random_tokens(model.sizes.vocab, n, s) for n, s in ((LENGTH, 1), (60, 2))]
    by_itself = GivenRun(model.packed(num_blocks=12), [tokens[1]], [apart])
    by_itself.steps([[(0, 60)]])
    beside = replace(apart, between=np.zeros(60, bool))
    decoder = model.packed(num_blocks=30, block_size=32, threads=2)
    run = GivenRun(decoder, tokens, [given, beside], 3)
    run.steps([[(1, 55), (0, 3)], [(1, 1), (0, 310)], [(0, 17), (1, 4)]])
    assert np.array_equal(bits(run.of(0)), alone)
    assert np.array_equal(bits(run.of(1)), bits(by_itself.of(0)))


@each_isa
def test_text_beside_given_rows_has_the_bits_of_text() -> None:
    model = SlowSeeing(MODELS["turns"])
    tokens = [random_tokens(model.sizes.vocab, n, n) for n in (90, 40)]
    plain = Run(model.packed(num_blocks=12), tokens).steps([[(0, 90)]]).of(0)
    text = SlowGiven(
        np.empty(0, np.int64), np.empty((0, BASE.hidden)), np.tile(np.arange(90), (3, 1))
    )
    given = [text, given_of("turns", 40, [(2, 30)])]
    run = GivenRun(model.packed(num_blocks=12), tokens, given).steps([[(1, 40), (0, 90)]])
    assert np.array_equal(bits(run.of(0)), bits(plain))


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rows": [0, 90]}, "each once, of 90"),
        ({"rows": [3, 3]}, "each once"),
        ({"rows": [-1, 3]}, "each once"),
        ({"rows": [1, 2, 3]}, r"rows is int32 of shape \(3,\)"),
        ({"rows": None}, "together"),
        ({"numbers": np.zeros((2, 71), np.float32)}, r"shape \(2, 72\) is needed"),
        ({"numbers": np.zeros((2, 72))}, "numbers is float64"),
        ({"turns": np.zeros((3, 89), np.int32)}, r"shape \(3, 90\)"),
        ({"turns": np.full((3, 90), 700, np.int32)}, "the tables have 700 positions"),
        ({"turns": np.full((3, 90), -1, np.int32)}, "turns go from -1"),
        ({"last_seen": np.full(90, 90, np.int32)}, "doesn.t see"),
        ({"between": np.zeros(89, np.uint8)}, r"shape \(90,\)"),
        ({"between": np.zeros(90, np.int32)}, "between is int32"),
        ({"last_seen": np.full(90, -1, np.int32)}, "doesn.t see"),
        ({"last_seen": np.array([50, *range(1, 90)], np.int32)}, "doesn.t see"),
    ],
)
def test_what_the_kernels_would_read_beyond_is_refused(wrong: dict[str, Any], said: str) -> None:
    model = SlowSeeing(MODELS["turns"])

    class Wrong(Run):
        def _given(self, work: Work, starts: list[int]) -> GivenRows:
            fields = {"rows": [4, 5], "numbers": np.zeros((2, 72), np.float32)} | wrong
            rows = fields.pop("rows")
            return GivenRows(rows=None if rows is None else np.array(rows, np.int32), **fields)

    run = Wrong(model.packed(num_blocks=12), [random_tokens(model.sizes.vocab, 90, 1)])
    with pytest.raises(ValueError, match=said):
        run.steps([[(0, 90)]])
