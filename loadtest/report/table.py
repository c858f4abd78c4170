"""Markdown tables whose columns are format strings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.bench.load.report import markdown_table


def table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> str:
    """columns: by heading, how a row's fields are shown there, as in `{p50:.1f} ms`."""
    cells = [[shown.format_map(row) for shown in columns.values()] for row in rows]
    return markdown_table(list(columns), cells)
