"""What a measurement found not to be as it should."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def verdict(found: Sequence[str]) -> str:
    """A sentence. found: what is wrong, in words."""
    return f"Not as it should be: {'; '.join(found)}." if found else "All as it should be."


def listed(lines: Iterable[str]) -> str:
    """As a list in Markdown; empty for none."""
    return "".join(f"- {line}\n" for line in lines)


def sections(parts: Iterable[str]) -> str:
    """The parts that aren't empty, as one Markdown file."""
    return "\n\n".join(part for part in parts if part).rstrip() + "\n"
