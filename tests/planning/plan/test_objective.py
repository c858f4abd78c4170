"""--slo: what it means, and what is said of what it can't mean."""

from __future__ import annotations

import re

import pytest

from penstock.errors import InvalidRequest
from penstock_planning.plan.objective import LatencyBound, parse_slo


def test_bounds_have_a_figure_a_percentile_and_a_time() -> None:
    assert parse_slo("ttft_p95=1s, itl_p50=50ms,e2e_p99=.5s") == (
        LatencyBound("ttft", 95, 1.0),
        LatencyBound("itl", 50, 0.05),
        LatencyBound("e2e", 99, 0.5),
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "empty"),
        (",", "empty"),
        ("ttft_p95", "'' is no time"),
        ("ttft=1s", "'' is no percentile"),
        ("ttft_p0=1s", "'p0' is no percentile"),
        ("ttft_p100=1s", "'p100' is no percentile"),
        ("ttft_p95.5=1s", "'p95.5' is no percentile"),
        ("tpot_p95=1s", "'tpot'"),
        ("ttft_p95=1", "'1' is no time"),
        ("ttft_p95=1m", "'1m' is no time"),
        ("ttft_p95=0s", "'0s' is no time"),
        ("ttft_p95=-1s", "'-1s' is no time"),
        ("ttft_p95=nans", "'nans' is no time"),
        ("ttft_p95=1e9s", "'1e9s' is no time"),
        ("ttft_p95=99999s", "'99999s' is no time"),
        ("ttft_p95=1s,ttft_p95=2s", "ttft_p95 is there twice"),
        (",".join(f"ttft_p{n}=1s" for n in range(1, 40)), "at most 16 bounds, not 39"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(text: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(named)) as raised:
        parse_slo(text)
    assert raised.value.param == "slo"
    assert "ttft_p95=1s" in str(raised.value) or "at most 16" in str(raised.value)


def test_a_long_text_is_not_repeated() -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_slo("x" * 100_000)
    assert len(str(raised.value)) < 400
