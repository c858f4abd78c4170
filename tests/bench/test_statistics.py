"""The summary against naive computations on the same numbers."""

from __future__ import annotations

import itertools
import statistics
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_bench.load.record import ErrorKind, RequestRecord
from penstock_bench.load.report import (
    distribution,
    summarise,
    time_per_output_token,
    token_gaps,
    tokens_per_chunk,
)
from tests.met import met

_TIMES = st.floats(0, 1e4, allow_nan=False)


def record(
    arrivals: list[float],
    *,
    totals: list[int] | None = None,
    usage: int | None = None,
    intended: float = 0.0,
    ended: float | None = None,
    error: str | None = None,
) -> RequestRecord:
    return RequestRecord(
        0,
        usage or 0,
        intended,
        sent=intended,
        ended=ended if ended is not None else max(arrivals, default=intended),
        arrivals=array("d", arrivals),
        totals=array("q", totals or []),
        completion_tokens=usage,
        error=error,
    )


@given(st.lists(_TIMES, min_size=2, max_size=200))
def test_quantiles_are_those_of_the_standard_library(values: list[float]) -> None:
    figures = distribution(values)
    assert figures is not None
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    met("several values", len({*values}) > 1)
    assert figures.p50 == pytest.approx(cuts[49], abs=1e-6)
    assert figures.p90 == pytest.approx(cuts[89], abs=1e-6)
    assert figures.p99 == pytest.approx(cuts[98], abs=1e-6)
    assert figures.mean == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert (figures.min, figures.max) == (min(values), max(values))
    assert not figures.lower_bounds


@given(
    st.lists(_TIMES, max_size=50),
    st.lists(st.tuples(_TIMES, _TIMES), min_size=1, max_size=50),
)
def test_censored_figures_never_exceed_the_truth(
    known: list[float], given_up: list[tuple[float, float]]
) -> None:
    """given_up: (age when given up, how much longer it would have taken)."""
    figures = distribution(known, [age for age, _ in given_up])
    truth = distribution(known + [age + more for age, more in given_up])
    met("some are known", known)
    assert figures is not None
    assert truth is not None
    for name in ("min", "p50", "p90", "p99", "max", "mean"):
        assert getattr(figures, name) <= getattr(truth, name) + 1e-6
    assert "max" in figures.lower_bounds
    assert figures.count == truth.count


def test_a_median_below_every_given_up_request_is_known() -> None:
    figures = distribution([1.0, 2.0, 3.0, 4.0], [10.0])
    assert figures is not None
    assert figures.p50 == 3.0
    assert set(figures.lower_bounds) == {"p90", "p99", "max", "mean"}


@given(st.data())
def test_token_gaps_hold_the_whole_time_and_every_token(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=40))
    steps = data.draw(
        st.lists(st.floats(0, 10), min_size=len(counts) - 1, max_size=len(counts) - 1)
    )
    arrivals = [float(at) for at in np.concatenate([[5.0], 5.0 + np.cumsum(steps)])]
    totals = [int(total) for total in np.cumsum(counts)]
    one = record(arrivals, totals=totals, usage=totals[-1])
    naive = [
        gap / count
        for gap, count in zip(
            (b - a for a, b in itertools.pairwise(arrivals)), counts[1:], strict=True
        )
        for _ in range(count)
    ]
    assert list(tokens_per_chunk(one)) == counts
    met("chunks of several tokens", max(counts) > 1 and len(counts) > 1)
    assert list(token_gaps(one)) == pytest.approx(naive)
    tpot = time_per_output_token(one)
    if len(counts) == 1:
        assert tpot is None
    else:
        assert tpot == pytest.approx((arrivals[-1] - arrivals[0]) / sum(counts[1:]))


@given(chunks=st.integers(1, 50), extra=st.integers(0, 200))
def test_uncounted_chunks_share_the_total_evenly(chunks: int, extra: int) -> None:
    shares = tokens_per_chunk(record([float(i) for i in range(chunks)], usage=chunks + extra))
    assert shares.sum() == chunks + extra
    met("they don't divide evenly", (chunks + extra) % chunks)
    assert shares.max() - shares.min() <= 1


def test_without_any_count_a_chunk_is_a_token() -> None:
    summary = summarise([record([1.0, 2.0, 3.0])])
    assert summary.output_tokens == 3
    assert summary.token_counts == {"one per chunk": 1}


def test_summary_counts_errors_by_kind_and_leaves_them_out_of_latencies() -> None:
    records = [
        record([1.0, 2.0], usage=2, ended=2.0),
        record([3.0, 4.0], usage=2, intended=1.0, ended=4.0),
        record([9.0], intended=0.0, ended=9.0, error=ErrorKind.TRUNCATED),
        record([], intended=0.0, ended=0.5, error="http_503"),
        record([5.0, 6.0, 7.0], intended=2.0, ended=10.0, error=ErrorKind.CUT_OFF),
    ]
    summary = summarise(records)
    assert (summary.requests, summary.completed, summary.failed, summary.cut_off) == (5, 2, 2, 1)
    assert summary.errors == {"truncated": 1, "http_503": 1, "cut_off_by_time_limit": 1}
    assert summary.duration_s == 10.0
    assert summary.output_tokens == 2 + 2 + 3
    assert summary.output_tokens_per_s == pytest.approx(0.7)
    assert summary.requests_per_s == pytest.approx(0.2)
    assert summary.ttft_ms is not None
    assert (summary.ttft_ms.min, summary.ttft_ms.max) == (1000.0, 3000.0)
    assert summary.ttft_ms.censored == 0  # the one that was cut off had its first token
    assert summary.end_to_end_ms is not None
    assert summary.end_to_end_ms.censored == 1
    assert summary.end_to_end_ms.max == 8000.0
    assert "max" in summary.end_to_end_ms.lower_bounds


def test_nothing_at_all_is_a_summary_too() -> None:
    summary = summarise([])
    assert summary.requests == 0
    assert summary.ttft_ms is None
