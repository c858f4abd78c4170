"""Traces, histograms, series, routers: each against something slow and obvious."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.routing import RoutingRequest
from penstock.errors import InvalidRequest
from penstock_planning.simulate.commands import Synthetic, draw, parse, synthetic
from penstock_planning.simulate.metrics import (
    LEAST,
    MOST_BINS,
    LatencyHistogram,
    Metrics,
    Series,
    Slo,
)
from penstock_planning.simulate.prompts import prompt_of, submit_of
from penstock_planning.simulate.routing import make_router
from penstock_planning.simulate.trace import TraceRequest, read_trace
from tests.met import met


@given(st.lists(st.floats(LEAST, 1e6), min_size=1, max_size=200), st.integers(1, 100))
def test_a_percentile_is_within_one_percent(values: list[float], percent: int) -> None:
    histogram = LatencyHistogram()
    met("several values", len({*values}) > 1)
    for value in values:
        histogram.add(value)
    exact = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
    assert histogram.percentile(percent) == pytest.approx(exact, rel=0.0101)
    assert histogram.mean == pytest.approx(sum(values) / len(values))
    assert histogram.curve()[-1][1] == 1


def test_a_histogram_of_nothing() -> None:
    assert math.isnan(LatencyHistogram().percentile(50))
    assert math.isnan(LatencyHistogram().mean)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 9)), max_size=100))
def test_a_series_keeps_sums_in_bounded_memory(pairs: list[tuple[float, int]]) -> None:
    series = Series()
    for at, amount in sorted(pairs):
        series.add(at, amount, amount)
    assert len(series.sums) <= MOST_BINS
    met("wider bins than at first", series.width > 1)
    assert sum(series.sums) == sum(amount for _, amount in pairs)
    for at, _ in pairs:
        inside = sum(a for when, a in pairs if int(when / series.width) == int(at / series.width))
        assert series.sums[int(at / series.width)] == inside
    assert max(series.peaks, default=0) == max((amount for _, amount in pairs), default=0)


def test_synthetic_traffic_has_the_rate_and_the_medians_that_were_asked_for() -> None:
    made = Synthetic(
        rate=5.0, requests=20_000, prompt=100, output=50, max_output=10_000, max_prompt=10_000
    )
    requests = list(synthetic(made))
    assert requests[-1].at == pytest.approx(4000, rel=0.03)
    assert sorted(r.num_prompt for r in requests)[10_000] == pytest.approx(100, rel=0.05)
    assert sorted(r.output_tokens for r in requests)[10_000] == pytest.approx(50, rel=0.05)
    assert requests == list(synthetic(made))
    gaps = [b.at - a.at for a, b in itertools.pairwise(requests)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance == pytest.approx(mean**2, rel=0.1)


def test_synthetic_tenants_and_prefixes_have_their_shares() -> None:
    made = parse("requests=5000,tenants=a:3+b:1,shared=0.4,groups=4,prefix=32")
    requests = list(synthetic(made))
    assert sum(r.tenant == "a" for r in requests) == pytest.approx(3750, rel=0.05)
    shared = [r for r in requests if r.prefix_group is not None]
    assert len(shared) == pytest.approx(2000, rel=0.07)
    assert {r.prefix_group for r in shared} == {0, 1, 2, 3}
    assert all(r.num_prompt > 32 for r in shared)


@pytest.mark.parametrize(
    "text", ["rate=0", "rate=x", "speed=3", "requests=0", "tenants=a:b", "burst=1", "rate=nan"]
)
def test_bad_synthetic_options_are_named(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"synthetic trace|tenants"):
        parse(text)


def test_prompts_share_exactly_what_the_trace_says() -> None:
    same = [TraceRequest(0, 100, 1, prefix_group=7, prefix_tokens=40) for _ in range(2)]
    one, two = prompt_of(same[0], 1), prompt_of(same[1], 2)
    other = prompt_of(TraceRequest(0, 100, 1, prefix_group=8, prefix_tokens=40), 3)
    assert len(one) == len(two) == 100
    assert one[:40] == two[:40]
    assert one[40:44] != two[40:44]
    assert one[:16] != other[:16]
    alone = [prompt_of(TraceRequest(0, 50, 1), number) for number in (1, 2, 40_000)]
    assert len({tuple(prompt[:3]) for prompt in alone}) == 3
    assert [len(prompt_of(TraceRequest(0, n, 1), 5)) for n in (1, 2, 3, 4)] == [1, 2, 3, 4]
    given_ids = TraceRequest(0, [5, 6, 7], 4)
    assert submit_of(given_ids, 9).prompt_token_ids == [5, 6, 7]
    with pytest.raises(InvalidRequest, match="token ids"):
        prompt_of(TraceRequest(0, [10**6], 1), 1)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"at": 0, "prompt_tokens": 0, "output_tokens": 1}', "line 2"),
        ('{"at": 0, "prompt_tokens": 1}', "output_tokens"),
        ('{"at": -1, "prompt_tokens": 1, "output_tokens": 1}', "line 2"),
        ('{"at": 0.5, "prompt_tokens": 1, "output_tokens": 1}', "before the previous one at 1 s"),
        ('{"at": 2, "prompt_tokens": 1, "output_tokens": 1, "x": 1}', "unknown field `x`"),
        ("nonsense", "line 2"),
    ],
)
def test_a_bad_trace_names_the_line(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "trace"
    path.write_text('{"at": 1, "prompt_tokens": [1, 2], "output_tokens": 1}\n' + line + "\n")
    with pytest.raises(InvalidRequest, match=words):
        list(read_trace(str(path)))
    with pytest.raises(InvalidRequest, match="No such file"):
        list(read_trace("/no/such/trace"))


class Replicas:
    """Stand-ins for replicas, and a policy that chooses among them by their numbers."""

    def __init__(self, routing: str, count: int, block_size: int) -> None:
        self.counts = [0] * count
        self._router = make_router(routing)
        self._all = [
            SimpleNamespace(endpoint=f"replica-{at}", block_size=block_size, load=0)
            for at in range(count)
        ]

    def choose(self, prompt: list[int]) -> int:
        for replica, count in zip(self._all, self.counts, strict=True):
            replica.load = count
        return self._all.index(self._router.choose(RoutingRequest(prompt, 128), self._all)[0])


def test_least_loaded_is_the_smallest_count() -> None:
    rng = random.Random(2)
    replicas = Replicas("least-loaded", 7, 16)
    counts = replicas.counts
    for _ in range(3000):
        if rng.random() < 0.5 and any(counts):
            counts[rng.choice([at for at, count in enumerate(counts) if count])] -= 1
        else:
            chosen = replicas.choose([1])
            assert counts[chosen] == min(counts)
            counts[chosen] += 1


def test_prefix_aware_keeps_a_prefix_together_until_it_is_too_much() -> None:
    replicas = Replicas("prefix-aware", 8, 4)
    counts = replicas.counts
    home = replicas.choose([1, 2, 3, 4, 99])
    assert replicas.choose([1, 2, 3, 4, 55, 66]) == home
    for number in range(400):
        counts[replicas.choose([1, 2, 3, 4, number])] += 1
    assert max(counts) <= 1.25 * 401 / 8 + 1
    spread = Replicas("prefix-aware", 8, 4)
    homes = {spread.choose([number, 2, 3, 4]) for number in range(200)}
    assert homes == set(range(8))


def test_round_robin_takes_turns() -> None:
    replicas = Replicas("round-robin", 3, 16)
    assert [replicas.choose([1]) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_without_matplotlib_drawing_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidRequest, match="needs matplotlib"):
        draw(Metrics(Slo(1, 1)), tmp_path / "chart.png")
