"""Rows of figures as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.bench.load.report import markdown_table


def table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> str:
    """columns: what stands in each cell below a heading, as `str.format` has it, by a row's keys:
    `{"p99, ms": "{p99_ms:.2f}"}`."""
    cells = [[cell.format_map(row) for cell in columns.values()] for row in rows]
    return markdown_table(list(columns), cells)
