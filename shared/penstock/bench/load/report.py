"""A run's result: as a JSON-able dict, and as a table for terminal and Markdown."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from typing import Any

from penstock.bench.load.options import LoadOptions
from penstock.bench.load.statistics import Distribution, Summary
from penstock.process.machine import describe_machine, version_of

SCHEMA = 1


@dataclass(frozen=True)
class LoadReport:
    command: list[str]
    options: LoadOptions
    model: str
    server_version: str | None
    started: datetime.datetime
    ended: datetime.datetime
    generator_cpu_s: float
    warmup_errors: dict[str, int]
    summary: Summary

    def to_dict(self) -> dict[str, Any]:
        options = asdict(self.options)
        for name in ("input_tokens", "output_tokens", "end_control"):
            options[name] = str(getattr(self.options, name))
        return {
            "schema": SCHEMA,
            "command": self.command,
            "started": self.started.isoformat(timespec="seconds"),
            "ended": self.ended.isoformat(timespec="seconds"),
            "machine": describe_machine(),
            "versions": {name: version_of(name) for name in ("penstock", "msgspec", "uvloop")},
            "server": {"model": self.model, "version": self.server_version},
            "options": options,
            "generator_cpu_s": round(self.generator_cpu_s, 3),
            "warmup_errors": self.warmup_errors,
            "result": self.summary.to_dict(),
        }


def latency_cell(figures: Distribution | None, name: str) -> str:
    """`12.3`, `> 12.3` where the run ended too early to know, or a dash."""
    if figures is None:
        return "–"
    value = getattr(figures, name)
    text = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"> {text}" if name in figures.lower_bounds else text


def to_markdown(summary: Summary) -> str:
    """Two tables: totals, then latencies in milliseconds."""
    totals = [
        ("requests", f"{summary.requests}"),
        ("completed", f"{summary.completed}"),
        ("failed", f"{summary.failed}"),
        ("cut off by the time limit", f"{summary.cut_off}"),
        ("duration, s", f"{summary.duration_s:.2f}"),
        ("requests/s", f"{summary.requests_per_s:.2f}"),
        ("output tokens/s", f"{summary.output_tokens_per_s:.1f}"),
        ("prompt tokens", f"{summary.prompt_tokens}"),
        ("output tokens", f"{summary.output_tokens}"),
    ]
    totals += [(f"error: {kind}", str(count)) for kind, count in sorted(summary.errors.items())]
    lines = markdown_table(["", "total"], [list(row) for row in totals])
    names = ["mean", "p50", "p90", "p99", "max"]
    latencies = [
        ("time to first token", summary.ttft_ms),
        ("inter-token", summary.inter_token_ms),
        ("inter-chunk", summary.inter_chunk_ms),
        ("time per output token", summary.time_per_output_token_ms),
        ("end to end", summary.end_to_end_ms),
        ("start lag", summary.start_lag_ms),
    ]
    rows = [[label, *(latency_cell(d, name) for name in names)] for label, d in latencies]
    return lines + "\n" + markdown_table(["milliseconds", *names], rows)


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """Aligned, so that it reads well in a terminal as well; all columns but the first to the
    right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    widths = [max(width, 3) for width in widths]

    def line(cells: list[str]) -> str:
        padded = [cells[0].ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "| " + " | ".join(padded) + " |\n"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return line(header) + line(rule) + "".join(line(row) for row in rows)
