"""What is to hold: bounds of latencies' percentiles."""

from __future__ import annotations

import math
import re

import msgspec

from penstock.errors import InvalidRequest

FIGURES = {
    "ttft": "to the first token",
    "itl": "between tokens",
    "e2e": "from a request to its last token",
}
UNITS = {"ms": 0.001, "s": 1.0}
MOST_BOUNDS = 16

ALLOWED = (
    "it takes FIGURE_pN=TIME, with the figures ttft, itl and e2e, N from 1 to 99, and a time in "
    "ms or s, as in ttft_p95=1s,itl_p95=50ms"
)


class LatencyBound(msgspec.Struct, frozen=True):
    """figure: of FIGURES.  percent: of the percentile.  seconds: that it may be at most."""

    figure: str
    percent: int
    seconds: float

    @property
    def name(self) -> str:
        return f"{self.figure}_p{self.percent}"

    def __str__(self) -> str:
        return f"{self.name} ≤ {duration(self.seconds)}"


def parse_slo(text: str) -> tuple[LatencyBound, ...]:
    """`ttft_p95=1s,itl_p95=50ms`. Raises InvalidRequest, which names the part that is wrong."""
    bounds = [_bound(part.strip()) for part in text.split(",") if part.strip()]
    names = [bound.name for bound in bounds]
    twice = next((name for name in names if names.count(name) > 1), None)
    if not bounds or twice:
        what = f"{twice} is there twice" if twice else "it is empty"
        raise InvalidRequest(f"--slo {text[:80]!r}: {what}; {ALLOWED}", param="slo")
    if len(bounds) > MOST_BOUNDS:
        raise InvalidRequest(f"--slo: at most {MOST_BOUNDS} bounds, not {len(bounds)}", param="slo")
    return tuple(bounds)


def _bound(part: str) -> LatencyBound:
    name, _, value = part.partition("=")
    figure, _, percentile = name.strip().partition("_")
    if figure not in FIGURES:
        raise _wrong(part, f"no figure is called {figure[:40]!r}")
    if not re.fullmatch(r"p[1-9][0-9]?", percentile):
        raise _wrong(part, f"{percentile[:40]!r} is no percentile")
    match = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ms|s)", value.strip())
    seconds = float(match[1]) * UNITS[match[2]] if match and len(value) < 40 else math.nan
    if not 0 < seconds <= 86_400:
        raise _wrong(part, f"{value[:40]!r} is no time above 0, and at most a day")
    return LatencyBound(figure, int(percentile[1:]), seconds)


def _wrong(part: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"--slo, {part[:80]!r}: {what}; {ALLOWED}", param="slo")


def duration(seconds: float) -> str:
    """`250 ms`, `1.5 s`; a dash for NaN."""
    if math.isnan(seconds):
        return "–"
    if seconds < 1:
        return f"{1000 * seconds:,.3g} ms"
    return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
