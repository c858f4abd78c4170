"""Sections of loadtest/README.md that commands write: what stands between the two comments
`NAME: begin …` and `NAME: end`."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def section(readme: Path, name: str) -> str:
    """What stands between the comments. Raises ValueError where they are missing."""
    return _found(readme, name)[2].strip()


def replace_section(readme: Path, name: str, text: str) -> None:
    """Raises ValueError where the comments are missing."""
    found = _found(readme, name)
    between = f"{found[1]}\n\n{text.strip()}\n\n{found[3]}"
    readme.write_text(found.string[: found.start()] + between + found.string[found.end() :])


def _found(readme: Path, name: str) -> re.Match[str]:
    """Begin, what is between, and end."""
    pattern = rf"(<!-- {name}: begin[^>]*-->)(.*?)(<!-- {name}: end -->)"
    found = re.search(pattern, readme.read_text(), re.DOTALL)
    if found is None:
        raise ValueError(f"{readme} has no lines `{name}: begin` and `{name}: end`")
    return found
