"""The sampler against a slow one that sorts everything, on logits of every sort."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock_kernels.cpu import library
from penstock_kernels.cpu.adjustments import CPURowAdjustments
from penstock_kernels.cpu.memory import Scratch
from penstock_kernels.cpu.sampler import Row, sample, uniform
from tests.instruction_sets import usable_here
from tests.kernels.cpu import slow_sampler
from tests.met import met
from tests.thinning import part

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("isa")]
kernels = settings.get_profile("kernels")

VOCABULARIES = (1, 17, 129, 5000, 49_152, 151_936)
LAST_DRAW = 1 - 2**-53
BESIDE = (1 - 1e-10, 1 - 1e-8, 1 + 1e-10, 1 + 1e-8)
CUTS = [
    Row(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature, top_k, top_p, min_p in itertools.product(
        (0.3, 0.8, 5.0), (0, 1, 40, 3000), (1.0, 0.9, 1e-9), (0.0, 0.05, 1.0)
    )
]


def some_logits(rng: np.random.Generator, vocab: int, sort: int) -> np.ndarray:
    """[vocab] float32: smooth, with a few that lead, with many ties, or all equal."""
    wide = rng.standard_normal(vocab) * 3
    if sort == 1:
        wide[rng.integers(0, vocab, 3)] += 12
    if sort == 2:
        wide = wide.round()
    if sort == 3:
        wide[:] = 1.5
    return wide.astype(np.float32)


def check(logits: np.ndarray, rows: list[Row], **options: object) -> None:
    tokens = sample(logits, rows, **options).tokens.tolist()
    for values, row, token in zip(logits, rows, tokens, strict=True):
        assert slow_sampler.may_be(token, values, row), row


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_every_combination_of_cuts(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    # Sorting takes its time: a part of the combinations where the vocabulary is large.
    cuts = CUTS if vocab <= 5000 else CUTS[rng.integers(0, 5) :: 5]
    logits = np.stack([some_logits(rng, vocab, at % 4) for at in range(len(cuts))])
    draws = rng.choice([0.0, *rng.random(8), LAST_DRAW], len(cuts))
    rows = [cut._replace(draw=draw) for cut, draw in zip(cuts, draws.tolist(), strict=True)]
    check(logits, rows, threads=2)


def test_thousands_of_rows() -> None:
    rng = np.random.default_rng(8)
    for vocab in rng.integers(2, 900, 12).tolist():
        logits = np.stack([some_logits(rng, vocab, sort % 4) for sort in range(256)])
        rows = [
            Row(
                temperature=float(rng.choice([0.0, 0.1, 0.7, 1.0, 2.0])),
                top_k=int(rng.choice([0, 1, 5, 50, vocab])),
                top_p=float(rng.choice([1.0, 0.99, 0.5, 0.01])),
                min_p=float(rng.choice([0.0, 0.01, 0.3])),
                draw=rng.random(),
                held_back=tuple(rng.integers(0, vocab + 2, int(rng.integers(0, 4))).tolist()),
            )
            for _ in logits
        ]
        check(logits, rows, threads=2)


@pytest.mark.parametrize("vocab", [1024, 5000, 49_152])
@pytest.mark.parametrize("sort", [0, 1])
def test_estimates_leave_no_doubt(vocab: int, sort: int) -> None:
    """Where a cut or a draw is nearer to another token than sums in float32 can tell."""
    rng = np.random.default_rng(vocab + sort)
    logits = some_logits(rng, vocab, sort)
    plain = Row(temperature=0.8)
    rows = []
    ids, weights = slow_sampler.kept(logits, plain)
    ends = np.cumsum(weights) / weights.sum()
    for end in ends[np.searchsorted(ends, rng.uniform(0.02, 0.98, 6))].tolist():
        rows += [plain._replace(draw=end * near) for near in BESIDE]
    order = np.lexsort((ids, -weights))
    held = np.cumsum(weights[order]) / weights.sum()
    for place in np.searchsorted(held, rng.uniform(0.3, 0.98, 6)).tolist():
        within = ids[np.sort(order[: place + 2])]
        shares = np.cumsum(weights[within]) / weights[within].sum()
        for token in ids[order[place : place + 2]]:  # The last one and the next.
            at = int(np.searchsorted(within, token))
            draw = float(shares[at] + shares[at - 1] * (at > 0)) / 2
            top_p = float(held[place])
            rows += [plain._replace(top_p=top_p * near, draw=draw) for near in BESIDE]
    check(np.stack([logits] * len(rows)), rows, threads=2)


def repeated(logits: np.ndarray) -> np.ndarray:
    """Returns enough tokens for weights to be estimated. logits: [1, vocab]."""
    return np.tile(logits, (1, -(-1024 // logits.shape[1])))


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
rows = st.builds(
    Row,
    temperature=st.sampled_from([0.0, 5e-324, 1e-308, 1e-3]) | st.floats(0.05, 100),
    top_k=st.integers(0, 80),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    draw=st.floats(0, 1, exclude_max=True),
    held_back=st.lists(st.integers(0, 90), max_size=5).map(tuple),
    logprobs=st.none() | st.integers(0, 90),
    adjustments=st.none(),
    given=st.none(),
)


@st.composite
def edited_rows(draw: st.DrawFn) -> tuple[np.ndarray, Row]:
    """A row of logits, and what is to be done to it."""
    vocab = draw(st.integers(1, 80))
    ids = st.lists(st.integers(0, vocab - 1), unique=True, max_size=20)
    biased, seen = draw(ids), draw(ids)
    adjustments = CPURowAdjustments(
        np.array(biased, np.int32),
        np.array([draw(st.floats(-100, 100)) for _ in biased], np.float64),
        np.array(seen, np.int32),
        np.array([draw(st.integers(0, 3) | st.just(10**5)) for _ in seen], np.int32),
        presence=draw(st.floats(-2, 2)),
        frequency=draw(st.floats(-2, 2)),
        repetition=draw(st.floats(0.5, 2) | st.floats(0, 100, exclude_min=True)),
    )
    wide = st.floats(-40, 40, width=16) | finite
    logits = draw(hnp.arrays(np.float32, (1, vocab), elements=wide))
    return logits, draw(rows)._replace(adjustments=adjustments)


@settings(kernels, max_examples=part(100, 1 / 3))
@given(
    logits=hnp.arrays(
        np.float32,
        st.integers(1, 80).map(lambda vocab: (1, vocab)),
        elements=st.floats(-40, 40, width=16) | finite,
    ),
    row=rows,
)
def test_any_row(logits: np.ndarray, row: Row) -> None:
    met("a cut distribution", row.top_p < 1 or row.min_p > 0 or 0 < row.top_k < logits.shape[1])
    met("held back", len(row.held_back))
    check(logits, [row])
    check(repeated(logits), [row])


@settings(kernels, max_examples=part(100, 1 / 3))
@given(case=edited_rows())
def test_any_edited_row(case: tuple[np.ndarray, Row]) -> None:
    logits, row = case
    check(logits, [row])
    check(repeated(logits), [row])
    before = logits.copy()
    plain, changed = sample(logits, [row._replace(adjustments=None)]), sample(logits, [row])
    met("another token than without adjustments", plain.tokens[0] != changed.tokens[0])
    met("log-probabilities", row.logprobs is not None)
    assert np.array_equal(logits, before)
    if row.logprobs is not None:
        ids, values = plain.alternatives[0]
        assert np.array_equal(changed.alternatives[0][0], ids), "of the raw distribution"
        assert np.array_equal(changed.alternatives[0][1], values)


def test_edits_of_several_rows_are_each_its_own() -> None:
    logits = np.zeros((5, 9), np.float32)
    greedy = Row(temperature=0.0)

    def biased(token: int) -> CPURowAdjustments:
        return CPURowAdjustments(np.array([token, 0], np.int32), np.array([2.0, 1.0]))

    rows = [
        greedy,
        greedy._replace(adjustments=biased(3)),
        greedy,
        greedy._replace(adjustments=biased(7)),
        greedy,
    ]
    assert sample(logits, rows, threads=2).tokens.tolist() == [0, 3, 0, 7, 0]


@pytest.mark.parametrize("vocab", [2, 129, 49_152])
def test_a_given_token_is_only_measured(vocab: int) -> None:
    logits = some_logits(np.random.default_rng(1), vocab, 0)
    given = [0, vocab // 2, vocab - 1]
    result = sample(np.stack([logits] * 3), [Row(given=token, logprobs=1) for token in given])
    expected = slow_sampler.log_probabilities(logits)
    assert result.tokens.tolist() == given
    assert result.logprobs == pytest.approx(expected[given], rel=1e-6, abs=1e-6)
    assert [ids.tolist() for ids, _ in result.alternatives] == [[int(logits.argmax())]] * 3
    with pytest.raises(ValueError, match=f"given must lie in 0 to {vocab - 1}, not {vocab}"):
        sample(logits[None], [Row(given=vocab)])


@pytest.mark.parametrize(
    ("adjustments", "message"),
    [
        (
            CPURowAdjustments(np.array([9], np.int32), np.array([1.0])),
            "ids of an edit must lie in 0 to 8",
        ),
        (
            CPURowAdjustments(np.array([-1], np.int32), np.array([1.0])),
            "ids of an edit must lie in 0 to 8",
        ),
        (CPURowAdjustments(np.array([1], np.int32), np.array([])), "differ in number"),
        (CPURowAdjustments(seen_ids=np.array([1], np.int32)), "differ in number"),
        (CPURowAdjustments(np.array([1], np.int32), np.array([np.inf])), "biases must be finite"),
        (CPURowAdjustments(presence=np.nan), "presence must be a finite number"),
        (CPURowAdjustments(repetition=0.0), "repetition must be above 0"),
    ],
    ids=str,
)
def test_edits_that_cannot_be_are_refused(adjustments: CPURowAdjustments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(np.zeros((1, 9), np.float32), [Row(adjustments=adjustments)])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("place", [0, 500, 1000])
def test_a_row_that_is_not_finite_fails_alone(bad: float, place: int) -> None:
    logits = np.random.default_rng(3).standard_normal((5, 1001)).astype(np.float32)
    rows = [Row(draw=0.4, logprobs=2), *[Row(draw=0.7, top_p=0.9, logprobs=2)] * 4]
    clean = sample(logits, rows)
    logits[2, place] = bad
    result = sample(logits, rows)
    assert result.tokens[2] == -1
    others = [0, 1, 3, 4]
    assert np.array_equal(result.tokens[others], clean.tokens[others])
    assert np.array_equal(result.logprobs[others], clean.logprobs[others])


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_ties_go_to_lower_ids(vocab: int) -> None:
    logits = np.zeros((1, vocab), np.float32)
    logits[0, ::2] = -0.0
    assert sample(logits, [Row(temperature=0.0)]).tokens.tolist() == [0]
    for wanted in {1, vocab // 2 + 1, vocab}:
        for cut in (Row(top_k=wanted), Row(top_p=(wanted - 0.5) / vocab)):
            last = sample(logits, [cut._replace(draw=LAST_DRAW)]).tokens[0]
            assert last == wanted - 1
    result = sample(logits, [Row(logprobs=5)])
    assert result.alternatives[0][0].tolist() == list(range(min(5, vocab)))


def test_rows_that_share_an_array_of_held_back_ids() -> None:
    """It is passed on once; what is beyond the vocabulary means nothing, in whatever it comes."""
    logits = some_logits(np.random.default_rng(3), 300, 0)[None].repeat(5, 0)
    shared = np.array([7, 5, 299, 300, -1, 2**31 - 1], np.int32)
    lists = [shared, (1, 2), shared, shared.copy(), shared.tolist()]
    given = sample(logits, [Row(draw=0.7, held_back=ids, logprobs=3) for ids in lists])
    for row, ids in enumerate(lists):
        kept = tuple(token for token in list(ids) if 0 <= token < 300)
        alone = sample(logits[:1], [Row(draw=0.7, held_back=kept, logprobs=3)])
        assert given.tokens[row] == alone.tokens[0]
        check(logits[:1], [Row(draw=0.7, held_back=kept)])


def test_held_back_ids() -> None:
    logits = np.arange(300, dtype=np.float32)[None]
    last_three = (299, 298, 297, 300, 10**12, -1)
    (greedy,) = sample(logits, [Row(temperature=0.0, held_back=last_three)]).tokens
    assert greedy == 296
    drawn = sample(
        logits, [Row(temperature=1e-9, held_back=last_three, draw=LAST_DRAW, logprobs=1)]
    )
    assert drawn.tokens.tolist() == [296]
    assert drawn.alternatives[0][0].tolist() == [299], "log-probabilities are of the raw row"
    (unless_all,) = sample(logits, [Row(temperature=0.0, held_back=tuple(range(300)))]).tokens
    assert unless_all == 299
    only = tuple(token for token in range(300) if token != 7)
    result = sample(logits.repeat(2, 0), [Row(held_back=only, draw=d) for d in (0.0, LAST_DRAW)])
    assert result.tokens.tolist() == [7, 7]


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("sort", range(4))
def test_log_probabilities(vocab: int, sort: int) -> None:
    logits = some_logits(np.random.default_rng(sort), vocab, sort)
    counts = [None, 0, 1, 5, 20, 200]
    result = sample(
        np.stack([logits] * len(counts)),
        [Row(temperature=0.5, top_k=30, draw=0.6, logprobs=count) for count in counts],
    )
    expected = slow_sampler.log_probabilities(logits)
    order = np.lexsort((np.arange(vocab), -logits))
    assert len(set(result.tokens.tolist())) == 1, "asking changes nothing"
    for row, count in enumerate(counts):
        ids, values = result.alternatives[row]
        assert ids.tolist() == order[: count or 0].tolist()
        assert values == pytest.approx(expected[ids], rel=1e-6, abs=1e-6)
        if count is not None:
            token = result.tokens[row]
            assert result.logprobs[row] == pytest.approx(expected[token], rel=1e-6, abs=1e-6)


def test_same_bits_in_any_company_on_any_instruction_set() -> None:
    rng = np.random.default_rng(5)
    logits = np.stack([some_logits(rng, 20_000, at % 4) for at in range(len(CUTS))])
    rows = [cut._replace(draw=rng.random(), logprobs=7) for cut in CUTS]

    def outcome(which: slice, threads: int, scratch: Scratch | None = None) -> list[tuple]:
        result = sample(logits[which], rows[which], threads=threads, scratch=scratch)
        bits = result.logprobs.view(np.uint32).tolist()
        tops = [(ids.tolist(), top.view(np.uint32).tolist()) for ids, top in result.alternatives]
        return list(zip(result.tokens.tolist(), bits, tops, strict=True))

    together = outcome(slice(None), 1)
    for threads in (2, 5):
        assert outcome(slice(None), threads) == together
    scratch = Scratch()
    for row in range(len(rows)):
        assert outcome(slice(row, row + 1), 3, scratch) == together[row : row + 1]
    library.use(usable_here()[-1])  # portable, where it was built
    assert outcome(slice(None), 2) == together


def test_weights_are_exponentials() -> None:
    """The first of two tokens is drawn up to its share of the weights: to 1e-14."""
    for gap in (0.01, 0.5, 1.0, 3.0, 12.0, 33.0):
        logits = np.array([[-gap, 0.0]], np.float32)
        share = 1 / (1 + np.exp(float(-logits[0, 0])))
        below, above = share * (1 - 1e-14), share * (1 + 1e-14)
        result = sample(logits.repeat(2, 0), [Row(draw=below), Row(draw=above)])
        assert result.tokens.tolist() == [0, 1]


def test_unlikely_means_unlikely_and_impossible_impossible() -> None:
    logits = np.array([[0.0, -3e38, 3e38, -3e38]], np.float32)
    for draw in (0.0, 0.5, LAST_DRAW):
        assert sample(logits, [Row(draw=draw)]).tokens.tolist() == [2]


def test_nothing_to_do() -> None:
    result = sample(np.zeros((0, 7), np.float32), [])
    assert result.tokens.shape == (0,)
    assert result.alternatives == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": -0.1}, "temperature must be a finite number, at least 0, not -0.1"),
        ({"temperature": float("nan")}, "temperature must be a finite number"),
        ({"temperature": float("inf")}, "temperature must be a finite number"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], not 0.0"),
        ({"min_p": 1.1}, r"min_p must be in \[0, 1\], not 1.1"),
        ({"draw": 1.0}, r"draw must be in \[0, 1\), not 1.0"),
        ({"logprobs": -2}, "logprobs must be None or at least 0"),
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(np.zeros((2, 9), np.float32), [Row(), Row(**change)])


@pytest.mark.parametrize("shape", [(9,), (3, 9), (2, 0), (1, 2, 9)], ids=str)
def test_logits_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\(2, vocab\) is needed"):
        sample(np.zeros(shape, np.float32), [Row(), Row()])
    with pytest.raises(ValueError, match="threads must be at least 1"):
        sample(np.zeros((1, 2), np.float32), [Row()], threads=0)


def test_draws() -> None:
    """They equal Philox-4x32-10's published answer for key 0 and counter 0."""
    (draw,) = uniform([0], [0], [0])
    assert draw == ((0x6627E8D5 >> 5) * 2**26 + (0xE169C58D >> 6)) / 2**53
    with pytest.raises(ValueError, match="2, 1 and 2 numbers don't match"):
        uniform([1, 2], [0], [1, 2])
