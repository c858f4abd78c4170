"""What the terminal can show: colours, width, what may be printed of a stranger's text."""

from __future__ import annotations

import os
import shutil
from typing import TextIO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Style:
    """Colours for one stream: where it is a terminal, and NO_COLOR and TERM don't forbid it."""

    def __init__(self, stream: TextIO) -> None:
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self.enabled = stream.isatty() and not plain

    def paint(self, text: str, *styles: str) -> str:
        """`text` in these of bold, dim, red, green, yellow and cyan."""
        if not self.enabled or not text:
            return text
        return f"\x1b[{';'.join(_CODES[one] for one in styles)}m{text}\x1b[0m"


def width() -> int:
    """Columns of the terminal."""
    return max(20, shutil.get_terminal_size().columns)


def clip(text: str, columns: int) -> str:
    """`text`, cut to so many characters."""
    return text if len(text) <= columns else text[: max(0, columns - 1)] + "…"


def printable(text: str) -> str:
    """The text without the control characters that would give orders to a terminal."""
    return "".join(one for one in text if one in "\n\t" or not _is_control(one))


def _is_control(character: str) -> bool:
    return ord(character) < 32 or 127 <= ord(character) < 160


def duration(seconds: float) -> str:
    """12 s, 3 min 4 s, 2 h 5 min, 3 d 4 h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def counted(number: float, singular: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number:,.0f} {singular}" + ("" if number == 1 else "s")
