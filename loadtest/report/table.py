"""Tables and lists in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock_bench.load.report import markdown_table


def table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> str:
    """columns: by heading, how a row's fields are shown there, as in `{p50:.1f} ms`."""
    cells = [[shown.format_map(row) for shown in columns.values()] for row in rows]
    return markdown_table(list(columns), cells)


def verdict(found: Sequence[str]) -> str:
    """A sentence. found: what is wrong, in words."""
    return f"Not as it should be: {'; '.join(found)}." if found else "All as it should be."


def listed(lines: Iterable[str]) -> str:
    """Empty for none."""
    return "".join(f"- {line}\n" for line in lines)


def sections(parts: Iterable[str]) -> str:
    """The parts that aren't empty, as one Markdown file."""
    return "\n\n".join(part.strip() for part in parts if part) + "\n"
