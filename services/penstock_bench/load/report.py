"""Distributions and the summary of a run, and its result: as a JSON-able dict, and as a table for
terminal and Markdown."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from penstock.process.machine import describe_machine, version_of
from penstock_bench.load.options import LoadOptions
from penstock_bench.load.record import CENSORED, ErrorKind, RequestRecord
from penstock_bench.quantile import quantile

_QUANTILES = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True)
class Distribution:
    """count includes the censored. lower_bounds names the figures that are only that: the run
    ended before their requests did."""

    count: int
    censored: int
    mean: float
    min: float
    p50: float
    p90: float
    p99: float
    max: float
    lower_bounds: tuple[str, ...] = ()


def distribution(
    values: Sequence[float] | np.ndarray, censored: Sequence[float] = ()
) -> Distribution | None:
    """censored: ages at which requests were given up; each would have taken at least as long,
    and leaving them out would flatter a slow server. None without any value."""
    count = len(values) + len(censored)
    if not count:
        return None
    known = np.asarray(values, dtype=np.float64)
    shortest = np.sort(np.concatenate([known, np.asarray(censored, dtype=np.float64)]))
    longest = np.sort(np.concatenate([known, np.full(len(censored), math.inf)]))
    figures = {name: quantile(shortest, q) for name, q in _QUANTILES.items()}
    bounds = [name for name, q in _QUANTILES.items() if quantile(longest, q) != figures[name]]
    if censored:
        bounds.append("mean")
    return Distribution(
        count=count,
        censored=len(censored),
        mean=float(shortest.mean()),
        lower_bounds=tuple(bounds),
        **figures,
    )


def tokens_per_chunk(record: RequestRecord) -> np.ndarray:
    """int64 [chunks]: exact where the server counted per chunk; else its total spread evenly over
    the chunks; else one each."""
    chunks = len(record.arrivals)
    if chunks and len(record.totals) == chunks:
        return np.diff(np.asarray(record.totals, dtype=np.int64), prepend=0)
    total = max(record.tokens, chunks)
    edges = np.arange(chunks + 1, dtype=np.int64) * total // max(chunks, 1)
    return np.diff(edges)


def chunk_gaps(record: RequestRecord) -> np.ndarray:
    """float64 [chunks - 1]: seconds between the arrivals of chunks."""
    return np.diff(np.asarray(record.arrivals, dtype=np.float64))


def token_gaps(record: RequestRecord) -> np.ndarray:
    """float64 [tokens after the first chunk], seconds: a chunk of k tokens that comes g after the
    one before gives k gaps of g / k."""
    counts = tokens_per_chunk(record)[1:]
    gaps = chunk_gaps(record)
    return np.repeat(gaps / np.maximum(counts, 1), counts)


def time_per_output_token(record: RequestRecord) -> float | None:
    """Seconds per token after the first chunk; None where nothing came after it."""
    counts = tokens_per_chunk(record)
    after_first = int(counts[1:].sum())
    if not after_first:
        return None
    return (record.arrivals[-1] - record.arrivals[0]) / after_first


@dataclass(frozen=True)
class Summary:
    """Times in milliseconds, rates per second of `duration_s`.

    duration_s: from the first intended start to the last end.
    output_tokens: of completed requests and of those that the run's time cut off.
    token_counts: how the tokens of how many requests were counted.
    """

    requests: int
    completed: int
    failed: int
    cut_off: int
    errors: dict[str, int]
    error_examples: dict[str, str]
    finish_reasons: dict[str, int]
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    token_counts: dict[str, int]
    ttft_ms: Distribution | None
    inter_token_ms: Distribution | None
    inter_chunk_ms: Distribution | None
    time_per_output_token_ms: Distribution | None
    end_to_end_ms: Distribution | None
    start_lag_ms: Distribution | None = field(default=None)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(records: Sequence[RequestRecord]) -> Summary:
    """Latencies are of completed and of censored requests; other failures only count as such."""
    completed = [record for record in records if record.ok]
    censored = [record for record in records if record.error in CENSORED]
    measured = completed + censored
    cut_off = sum(record.error == ErrorKind.CUT_OFF for record in records)
    duration = _duration(records)
    output_tokens = sum(
        record.tokens for record in records if record.ok or record.error == ErrorKind.CUT_OFF
    )
    rate = 1.0 / duration if duration > 0 else 0.0
    return Summary(
        requests=len(records),
        completed=len(completed),
        failed=len(records) - len(completed) - cut_off,
        cut_off=cut_off,
        errors=dict(Counter(record.error for record in records if record.error is not None)),
        error_examples={r.error: r.error_detail for r in records if r.error is not None},
        finish_reasons=dict(Counter(str(record.finish_reason) for record in completed)),
        duration_s=duration,
        prompt_tokens=sum(record.prompt_tokens or 0 for record in completed),
        output_tokens=output_tokens,
        requests_per_s=len(completed) * rate,
        output_tokens_per_s=output_tokens * rate,
        token_counts=dict(Counter(_how_counted(record) for record in completed)),
        ttft_ms=_milliseconds(
            [record.arrivals[0] - record.intended for record in measured if record.arrivals],
            [_age(record) for record in censored if not record.arrivals],
        ),
        inter_token_ms=_milliseconds(_joined([token_gaps(record) for record in measured])),
        inter_chunk_ms=_milliseconds(_joined([chunk_gaps(record) for record in measured])),
        time_per_output_token_ms=_milliseconds(
            [tpot for r in measured if (tpot := time_per_output_token(r)) is not None]
        ),
        end_to_end_ms=_milliseconds(
            [_age(record) for record in completed], [_age(record) for record in censored]
        ),
        start_lag_ms=_milliseconds(
            [record.sent - record.intended for record in records if record.sent is not None]
        ),
    )


def _duration(records: Sequence[RequestRecord]) -> float:
    ends = [record.ended for record in records if record.ended is not None]
    return max(ends) - min(record.intended for record in records) if ends else 0.0


def _age(record: RequestRecord) -> float:
    return (record.ended or record.intended) - record.intended


def _how_counted(record: RequestRecord) -> str:
    if record.totals and len(record.totals) == len(record.arrivals):
        return "server, per chunk"
    if record.completion_tokens is not None:
        return "usage, spread over chunks"
    return "one per chunk"


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.empty(0)


def _milliseconds(
    values: Sequence[float] | np.ndarray, censored: Sequence[float] = ()
) -> Distribution | None:
    return distribution(
        np.asarray(values, dtype=np.float64) * 1e3,
        [age * 1e3 for age in censored],
    )


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
