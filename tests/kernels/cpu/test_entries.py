"""Attention to the last tokens and to entries that stand for several, beside float64; and a row's
bits in any chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.operands import (
    Attention,
    CPUEntries,
    EntriesShape,
    NormWeights,
    RotationTable,
)
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind, Program
from tests.kernels.cpu.test_arguments import changed
from tests.kernels.cpu.test_mixing import Given

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("isa")]

DIM, TURNING, INDEX, INDEX_HEADS, WINDOW, EPS = 32, 8, 16, 24, 21, 1e-5


@dataclass(frozen=True)
class Case:
    rate: int = 0
    series: int = 1
    most: int | None = None
    heads: int = 6
    length: int = 150


CASES = {
    "chosen": Case(rate=4, series=2, most=9),
    "all": Case(rate=32),
    "chosen, unlike blocks": Case(rate=5, series=2, most=20),
    "unlike blocks": Case(rate=24, heads=4),
    "none": Case(),
    "all, over several splits": Case(rate=1, length=600, heads=3),
    "chosen, over several splits": Case(rate=2, series=2, most=270, length=600, heads=3),
    "heads of which threads have some each": Case(rate=4, series=2, most=9, heads=20),
}


class Model:
    """Random weights of attention, and rows of a sequence that are what its products made."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._random = np.random.default_rng(case.rate)
        self.key_norm, self.query_norm = self._norm(DIM), self._norm(DIM)
        angles = np.outer(np.arange(case.length), 50.0 ** (-np.arange(TURNING // 2) / 4))
        self.turn = RotationTable(
            np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        )
        self.sinks = self._made(case.heads)
        self.entries = self._entries() if case.rate else None
        given = 0 if self.entries is None else self.entries.shape.given
        index = 0 if case.most is None else INDEX_HEADS * INDEX
        self.widths = (
            DIM + given,
            case.heads * DIM,
            index,
            0 if case.most is None else INDEX_HEADS,
        )
        self.rows = self._made(case.length, sum(self.widths))

    def _made(self, *shape: int) -> np.ndarray:
        return self._random.standard_normal(shape).astype(np.float32)

    def _norm(self, size: int) -> NormWeights:
        return NormWeights(1 + self._made(size) / 4, EPS)

    def _entries(self) -> CPUEntries:
        case, index = self.case, INDEX if self.case.most else 0
        found = CPUEntries(
            shape=EntriesShape(case.rate, case.series, DIM, index),
            bias=self._made(case.rate, case.series * DIM),
            norm=self._norm(DIM),
        )
        if case.most is None:
            return found
        return replace(
            found,
            most=case.most,
            index_heads=INDEX_HEADS,
            index_bias=self._made(case.rate, case.series * INDEX),
            index_norm=self._norm(INDEX),
        )

    # ---- for the kernels

    def program(self) -> Program:
        attention = Attention(
            layer=0,
            heads=self.case.heads,
            kv_heads=1,
            head_dim=DIM,
            rotation=self.turn,
            window=WINDOW,
            sinks=self.sinks,
            entries=self.entries,
        )
        phases, first = [], 0
        targets = (Buffer.KEYS, Buffer.QUERIES, Buffer.MIXED, Buffer.SCORES)
        for target, width in zip(targets, self.widths, strict=True):
            if width:
                taken = Phase(
                    kind=PhaseKind.TAKE_ROWS, target=target, first=first, width=width, adds=False
                )
                phases.append(taken)
            first += width
        placed = Phase(
            kind=PhaseKind.PLACE_ENTRIES,
            source=Buffer.KEYS,
            target=Buffer.QUERIES,
            beside=Buffer.MIXED,
            attention=attention,
            norm=self.key_norm,
            other_norm=self.query_norm,
        )
        phases.append(placed)
        if self.entries is not None:
            phases.append(Phase(kind=PhaseKind.MAKE_ENTRIES, attention=attention))
        index = Phase(
            kind=PhaseKind.INDEX, source=Buffer.SCORES, target=Buffer.MIXED, attention=attention
        )
        if self.case.most is not None:
            phases += [index, replace(index, kind=PhaseKind.CHOOSE)]
        phases += [
            replace(index, kind=PhaseKind.ATTEND_ENTRIES, source=Buffer.QUERIES),
            Phase(kind=PhaseKind.ROWS, source=Buffer.MIXED, width=self.widths[1], waits=False),
        ]
        return Program(tuple(phases), vocab=1)

    def computed(
        self, counts: list[int], *, cache: str = "float32", threads: int = 2, block: int = 16
    ) -> np.ndarray:
        run = Given(
            Decoder(self.program(), block, 50, cache=cache, threads=threads),
            [[0] * len(self.rows)],
            seed=block,
        )
        run.numbers = self.rows
        return run.steps([(0, count)] for count in counts).of(0)

    # ---- in float64

    def slow(self) -> np.ndarray:
        case = self.case
        cuts = np.cumsum(self.widths)[:-1]
        made, queries, asked, weights = np.split(self.rows.astype(np.float64), cuts, -1)
        at, scale = np.arange(case.length), DIM**-0.5
        keys = self._turned(self._normed(made[:, :DIM], self.key_norm), at)
        queries = queries.reshape(case.length, case.heads, DIM)
        queries = self._turned(self._normed(queries, self.query_norm), at)
        entries, chosen = self._made_entries(made[:, DIM:], asked, weights)
        found = np.zeros_like(queries)
        for row in at:
            seen = np.concatenate((keys[max(0, row - WINDOW + 1) : row + 1], entries[chosen[row]]))
            scores = np.exp(queries[row] @ seen.T * scale)
            shares = scores / (scores.sum(-1) + np.exp(self.sinks))[:, None]
            found[row] = shares @ seen
        return self._turned(found, at, back=True).reshape(case.length, -1)

    def _made_entries(
        self, given: np.ndarray, asked: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Entries, and which of them each row reads."""
        case, own = self.case, self.entries
        if own is None:
            return np.zeros((0, DIM)), [np.zeros(0, int)] * case.length
        count = case.length // case.rate
        seen = [(row + 1) // case.rate for row in range(case.length)]
        main = 2 * case.series * DIM
        entries = self._compressed(given[:, :main], DIM, own.bias, own.norm, count)
        if own.index_norm is None or own.index_bias is None or case.most is None:
            return entries, [np.arange(each) for each in seen]
        keys = self._compressed(given[:, main:], INDEX, own.index_bias, own.index_norm, count)
        asked = self._turned(asked.reshape(-1, INDEX_HEADS, INDEX), np.arange(case.length))
        scores = np.einsum("rh,rhe->re", weights, np.maximum(asked @ keys.T, 0))
        order = [np.argsort(-row[:n], kind="stable") for row, n in zip(scores, seen, strict=True)]
        return entries, [np.sort(each[: case.most]) for each in order]

    def _compressed(
        self, given: np.ndarray, size: int, bias: np.ndarray, norm: NormWeights, count: int
    ) -> np.ndarray:
        case, found = self.case, []
        values, logits = np.split(given, 2, -1)
        logits = logits + np.resize(bias, logits.shape)
        for number in range(count):
            first = number * case.rate
            parts = [(first, (case.series - 1) * size)]
            if case.series == 2 and number:
                parts = [(first - case.rate, 0), *parts]
            both = [
                np.concatenate([each[at : at + case.rate, to : to + size] for at, to in parts])
                for each in (values, logits)
            ]
            shares = np.exp(both[1]) / np.exp(both[1]).sum(0)
            found.append((both[0] * shares).sum(0))
        return self._turned(self._normed(np.array(found), norm), np.arange(count) * case.rate)

    @staticmethod
    def _normed(x: np.ndarray, norm: NormWeights) -> np.ndarray:
        mean = (x * x).mean(-1, keepdims=True)
        found: np.ndarray = x / np.sqrt(mean + norm.eps) * norm.weight
        return found

    def _turned(self, x: np.ndarray, at: np.ndarray, *, back: bool = False) -> np.ndarray:
        """Neighbours among the last numbers, as complex ones."""
        angles = self.turn.cosines[at] + 1j * self.turn.sines[at]
        angles = angles.conj() if back else angles
        pairs = np.ascontiguousarray(x[..., -TURNING:]).view(np.complex128)
        pairs = pairs * (angles if x.ndim == 2 else angles[:, None])
        return np.concatenate((x[..., :-TURNING], pairs.view(np.float64)), -1)


@pytest.mark.parametrize("name", CASES)
def test_in_float32(name: str) -> None:
    model = Model(CASES[name])
    assert np.allclose(model.computed([model.case.length]), model.slow(), rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("cache", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_any_chunks_and_blocks(name: str, cache: str) -> None:
    """Chunks that end within entries, decodes, and threads that share a row's heads."""
    model = Model(CASES[name])
    whole = model.computed([model.case.length], cache=cache)
    assert np.isfinite(whole).all()
    rest = model.case.length - 100
    for counts, threads, block in (
        ([1, 2, 30, 3, 60, 4] + [1] * 40 + [rest - 40], 2, 16),
        ([99, 1, rest], 1, 48),
    ):
        found = model.computed(counts, cache=cache, threads=threads, block=block)
        assert np.array_equal(found, whole), block


def test_in_bfloat16() -> None:
    model = Model(CASES["all"])
    found, slow = model.computed([150], cache="bfloat16"), model.slow()
    assert np.abs(found - slow).max() < 0.04 * np.abs(slow).max()


def test_what_is_no_number_stays_where_it_is_seen() -> None:
    """A token that gives NaN spoils the entries that it has a part in, and no row before them."""
    model = Model(CASES["all"])
    before = model.computed([150])
    model.rows[40, DIM : model.widths[0]] = np.nan
    found = model.computed([150])
    assert np.array_equal(found[:63], before[:63])
    assert np.isnan(found[63:]).all()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (PhaseKind.PLACE_ENTRIES, {"attention": None}),
        (PhaseKind.PLACE_ENTRIES, {"norm": None}),
        (PhaseKind.PLACE_ENTRIES, {"beside": Buffer.SCORES}),
        (PhaseKind.PLACE_ENTRIES, {"source": Buffer.SCORES}),
        (PhaseKind.MAKE_ENTRIES, {"attention": None}),
        (PhaseKind.INDEX, {"source": Buffer.MIXED}),
        (PhaseKind.CHOOSE, {"kind": PhaseKind.INDEX}),
        (PhaseKind.ATTEND_ENTRIES, {"source": Buffer.KEYS}),
    ],
    ids=str,
)
def test_phases_of_entries_with_wrong_buffers_are_refused(
    kind: PhaseKind, fields: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match="doesn't fit what comes before it"):
        Decoder(
            changed(Model(CASES["chosen"]).program(), kind, **fields),
            *(16, 1),
            cache="float32",
            threads=1,
        )


def test_a_cache_of_bytes_has_no_entries() -> None:
    with pytest.raises(ValueError, match="doesn't fit"):
        Decoder(Model(CASES["all"]).program(), 16, 1, cache="int8", threads=1)


def test_biases_of_another_shape() -> None:
    entries = Model(CASES["all"]).entries
    assert entries is not None
    with pytest.raises(ValueError, match=r"float32 \(32, 32\) are needed"):
        replace(entries, bias=entries.bias[:5]).struct(np.zeros((1, 64), np.uint8))
