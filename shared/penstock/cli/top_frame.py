"""What `penstock top` draws: lines of text made of the states seen so far."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from penstock.cli.status import models_table
from penstock.cli.system_report import ModelNumbers, SystemReport, bar
from penstock.cli.terminal import Style, clip, counted, duration, width

SEEN = 60
"""Looks that the little chart goes back."""
FORGET = 60.0
"""Seconds after which a gateway that answered no more is left out."""
LEAST_APART = 0.05
"""Seconds between two states of the engine core; less, and they are the same one."""
_LEVELS = " ▁▂▃▄▅▆▇█"


@dataclass
class Rates:
    """Per second, between the last two looks. busy: share of the time that workers computed."""

    generated: float = 0.0
    computed: float = 0.0
    steps: float = 0.0
    busy: float = 0.0


class History:
    """The last states, and what follows from two of them. state: the newest, None when lost."""

    def __init__(self) -> None:
        self.state: SystemReport | None = None
        self.trouble = ""
        self.rates = Rates()
        self.by_model: dict[str, float] = {}
        self.generated: deque[float] = deque(maxlen=SEEN)
        self.gateways: dict[int, tuple[float, dict[str, Any]]] = {}
        self._before: tuple[float, SystemReport] | None = None

    def add(self, state: SystemReport, now: float) -> None:
        """A look at a moment of a monotonic clock."""
        # The engine core's words are as old as it says, and rates are between two of them.
        measured_at = now - float(state.raw.get("status_age") or 0.0)
        before = self._before
        if before is None or before[1].raw.get("boot") != state.raw.get("boot"):
            self._before = (measured_at, state)
        elif measured_at - before[0] > LEAST_APART:
            self.rates = _rates(before[1], state, measured_at - before[0])
            self.by_model = _model_rates(before[1], state, measured_at - before[0])
            self.generated.append(sum(self.by_model.values()) or self.rates.generated)
            self._before = (measured_at, state)
        self.state, self.trouble = state, ""
        if state.gateway:
            self.gateways[int(state.gateway.get("pid", 0))] = (now, state.gateway)
        self.gateways = {
            pid: seen for pid, seen in self.gateways.items() if now - seen[0] <= FORGET
        }

    def lost(self, reason: str) -> None:
        """Notes that no server answered, and why."""
        self.state, self.trouble, self._before = None, reason, None


def frame(history: History, url: str, interval: float, style: Style) -> list[str]:
    """Lines no wider than the terminal."""
    columns = width()
    clock = time.strftime("%H:%M:%S")
    model = _title(history.state)
    left = clip(f"penstock  {model}  {url}", columns - len(clock) - 1)
    lines = [style.paint(left, "bold") + " " * max(1, columns - len(left) - len(clock)) + clock]
    lines += [_condition(history, columns, style), ""]
    if history.state is not None:
        lines += _numbers(history, history.state, columns, style)
    foot = clip(f"every {interval:g} s; q leaves", columns)
    return [*lines, "", style.paint(foot, "dim")]


def _title(state: SystemReport | None) -> str:
    if state is None:
        return "-"
    return f"{len(state.models)} models" if state.models else state.model


def _condition(history: History, columns: int, style: Style) -> str:
    state = history.state
    if state is None:
        return style.paint(clip(history.trouble or "no answer yet", columns), "red")
    if state.ready:
        return style.paint("ready", "green")
    return style.paint(clip(f"not ready: {state.reason}", columns), "yellow")


def _numbers(history: History, state: SystemReport, columns: int, style: Style) -> list[str]:
    if state.models:
        chart = _chart(history, columns, style)
        table = models_table(state, style, history.by_model)
        return [*chart, *table, "", *_gateways(history, columns, style)]
    rates, count = history.rates, state.count
    total = int(count("blocks_total"))
    share = state.blocks_used / total if total else 0.0
    rows = [
        ("running", f"{count('running'):,.0f}    waiting {count('waiting'):,.0f}"),
        ("tokens/s", f"{rates.generated:,.1f} generated    {rates.computed:,.1f} computed"),
        ("steps/s", f"{rates.steps:,.1f}    workers busy {100 * rates.busy:.0f} %"),
        (
            "KV blocks",
            f"{bar(share, _bar_width(columns))} {state.blocks_used:,} of {total:,}, "
            f"{count('blocks_cached'):,.0f} cached",
        ),
        ("preempted", counted(count("preemptions"), "time")),
        (
            "processes",
            state.processes,
        ),
    ]
    lines = [clip(f"{name:<10} {text}", columns) for name, text in rows]
    lines[2:2] = _chart(history, columns, style)
    return [*lines, "", *_gateways(history, columns, style)]


def _chart(history: History, columns: int, style: Style) -> list[str]:
    """Tokens per second so far, in a line; nothing before there are any."""
    if not history.generated:
        return []
    chart = sparkline(list(history.generated)[-(columns - 12) :])
    return [f"{'':<10} " + style.paint(chart, "cyan")]


def _gateways(history: History, columns: int, style: Style) -> list[str]:
    head = f"{'GATEWAY':>9} {'OPEN':>6}  {'STATE':<14}  UP"
    lines = [style.paint(clip(head, columns), "dim")]
    for pid, (_, gateway) in sorted(history.gateways.items()):
        state = "draining" if gateway.get("draining") else "connected"
        if not gateway.get("connected"):
            state = "no engine core"
        up = duration(float(gateway.get("uptime") or 0))
        row = f"{pid:>9} {gateway.get('open_requests', 0):>6}  {state:<14}  {up}"
        lines.append(clip(row, columns))
    return lines


def _bar_width(columns: int) -> int:
    return max(6, min(40, columns - 48))


def sparkline(values: list[float]) -> str:
    """A character for each value, as high as its share of the highest."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return _LEVELS[1] * len(values)
    steps = len(_LEVELS) - 1
    return "".join(_LEVELS[max(1, round(value / highest * steps))] for value in values)


def _rates(before: SystemReport, after: SystemReport, seconds: float) -> Rates:
    def per_second(name: str) -> float:
        return max(0.0, after.count(name) - before.count(name)) / max(seconds, 1e-6)

    return Rates(
        generated=per_second("tokens_generated"),
        computed=per_second("tokens_computed"),
        steps=per_second("steps"),
        busy=min(1.0, per_second("compute_seconds")),
    )


def _model_rates(before: SystemReport, after: SystemReport, seconds: float) -> dict[str, float]:
    """Tokens per second of each of several models."""
    earlier = {numbers.name: numbers.tokens for numbers in _by_model(before)}
    return {
        numbers.name: max(0, numbers.tokens - earlier.get(numbers.name, numbers.tokens))
        / max(seconds, 1e-6)
        for numbers in _by_model(after)
    }


def _by_model(state: SystemReport) -> list[ModelNumbers]:
    return [ModelNumbers.of(state, model) for model in state.models]
