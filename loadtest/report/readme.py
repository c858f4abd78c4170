"""Sections of loadtest/README.md that commands write."""

from __future__ import annotations

from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def markers(name: str, command: str) -> tuple[str, str]:
    """The lines around the section `name`, which `command` writes."""
    return f"<!-- {name}: begin (written by {command} --write-readme) -->", f"<!-- {name}: end -->"


def replace_section(readme: Path, begin: str, end: str, section: str) -> None:
    """Replaces what stands between two lines. Raises ValueError where they are missing."""
    text = readme.read_text()
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{readme} has no lines {begin!r} and {end!r}")
    readme.write_text(f"{before}{begin}\n\n{section.strip()}\n\n{end}{after}")
