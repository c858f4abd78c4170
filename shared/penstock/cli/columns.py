"""Sizes, dates and tables, as `list`, `rm` and `show` print them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def decimal(size: float) -> str:
    """`4.92 GB`, `12.3 MB`, `4.1 kB`: as disks and the hub count."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size / 1e3:.3g} kB"


def counted(number: float) -> str:
    """`1.24 B`, `135 M`: parameters."""
    for unit, scale in (("B", 1e9), ("M", 1e6)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:,.0f}"


def day(seconds: float) -> str:
    """2026-03-01 17:20, in local time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines, the first one being the heads; a column is as wide as its longest cell."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
