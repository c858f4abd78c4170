"""Load against latency as a drawing, SVG written by hand: nothing has to be installed for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from penstock_planning.plan.objective import LatencyBound
from penstock_planning.plan.plan import CapacityPlan
from penstock_planning.plan.trial import PlanTrial

WIDTH, HEIGHT = 460, 320
LEFT, TOP, RIGHT, BOTTOM = 62, 40, 16, 52
COLOURS = {"p50": "#2f6f9f", "p95": "#c2571a", "p99": "#8a8a8a"}
PANELS = (("ttft", "to the first token"), ("itl", "between tokens"))


class Scale(NamedTuple):
    """Where a value stands, in pixels: from `low` at `begin` to `high` at `end`."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.begin + min(max(share, 0.0), 1.0) * (self.end - self.begin), 1)


def draw(plan: CapacityPlan, bounds: Sequence[LatencyBound]) -> str:
    """The whole file."""
    width = len(PANELS) * WIDTH
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" '
        f'height="{HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
    ]
    for number, (figure, title) in enumerate(PANELS):
        own = [bound for bound in bounds if bound.figure == figure]
        body.append(f'<g transform="translate({number * WIDTH} 0)">')
        body += _panel(plan, figure, title, own)
        body.append("</g>")
    return "\n".join([*body, "</svg>", ""])


def _panel(
    plan: CapacityPlan, figure: str, title: str, bounds: Sequence[LatencyBound]
) -> list[str]:
    def value(trial: PlanTrial, name: str) -> float | None:
        found: float | None = getattr(trial, f"{figure}_ms")[name]
        return found

    values = [v for t in plan.curve for name in COLOURS if (v := value(t, name))]
    values += [1000 * bound.seconds for bound in bounds]
    low, high = _decades(values or [1.0])
    across = Scale(0.0, max(trial.rate for trial in plan.curve), LEFT, WIDTH - RIGHT)
    up = Scale(low, high, HEIGHT - BOTTOM, TOP, logarithmic=True)
    cores = plan.curve[0].cores
    estimate = " (estimate)" if plan.estimated else ""
    lines = [_text(LEFT, 18, f"ms {title}, {cores:,} engine core(s){estimate}", size=12)]
    lines += _axes(across, up)
    for name, colour in COLOURS.items():
        points = [(across(t.rate), up(v)) for t in plan.curve if (v := value(t, name))]
        lines.append(_line(points, colour))
        lines += [f'<circle cx="{x}" cy="{y}" r="2.2" fill="{colour}"/>' for x, y in points]
    for at, (name, colour) in enumerate(COLOURS.items()):
        lines.append(_text(LEFT + 8 + 36 * at, TOP + 12, name, colour=colour))
    for bound in bounds:
        y = up(1000 * bound.seconds)
        lines.append(_line([(LEFT, y), (WIDTH - RIGHT, y)], "#333", dashes="5 4"))
        lines.append(_text(WIDTH - RIGHT, y - 4, str(bound), anchor="end"))
    if plan.knee is not None:
        x = across(plan.knee)
        lines.append(_line([(x, TOP), (x, HEIGHT - BOTTOM)], "#3a7d34", dashes="2 3"))
        lines.append(
            _text(x - 4, HEIGHT - BOTTOM - 6, f"knee {plan.knee:,.4g}/s", "#3a7d34", "end")
        )
    return lines


def _axes(across: Scale, up: Scale) -> list[str]:
    bottom = HEIGHT - BOTTOM
    lines = []
    for tick in _ticks(across.high):
        x = across(tick)
        lines.append(_line([(x, TOP), (x, bottom)], "#e4e4e4"))
        lines.append(_text(x, bottom + 15, f"{tick:g}", anchor="middle"))
    for exponent in range(round(math.log10(up.low)), round(math.log10(up.high)) + 1):
        y = up(10.0**exponent)
        lines.append(_line([(LEFT, y), (WIDTH - RIGHT, y)], "#e4e4e4"))
        lines.append(_text(LEFT - 6, y + 4, f"{10.0**exponent:,g}", anchor="end"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*lines, _text(middle, HEIGHT - 14, "requests/s", anchor="middle")]


def _ticks(most: float) -> list[float]:
    """About five round numbers from 0 on."""
    rough = most / 5 if most > 0 else 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    return [round(step * at, 9) for at in range(int(most / step + 1e-9) + 1)]


def _decades(values: Sequence[float]) -> tuple[float, float]:
    rounding: tuple[Callable[[float], int], ...] = (math.floor, math.ceil)
    low, high = (
        r(math.log10(v)) for r, v in zip(rounding, (min(values), max(values)), strict=True)
    )
    return 10.0**low, 10.0 ** max(high, low + 1)


def _line(points: Sequence[tuple[float, float]], colour: str, dashes: str = "") -> str:
    places = " ".join(f"{x},{y}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{places}" fill="none" stroke="{colour}"{dashed}/>'


def _text(
    x: float, y: float, words: str, colour: str = "#222", anchor: str = "start", size: int = 11
) -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(words)}</text>"
    )
