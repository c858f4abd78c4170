"""What a person types at a prompt: editing and history by readline, messages of several lines."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock.cli.terminal import Style

HISTORY_LINES = 1000
QUOTES = '"""'


def state_folder() -> Path:
    """The folder of this user's state (XDG)."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "penstock"


class LineInput:
    """Reads messages from stdin. On a terminal with a prompt, editing, and a history file."""

    def __init__(self, completions: list[str]) -> None:
        self.interactive = sys.stdin.isatty()
        self._style = Style(sys.stdout)
        self._readline = _readline(completions) if self.interactive else None
        self._file = state_folder() / "chat_history"
        if self._readline is not None:
            try:
                self._readline.read_history_file(self._file)
            except OSError:
                pass  # There is none yet.

    def message(self) -> str:
        """The next message; may be empty. Raises EOFError at the end, KeyboardInterrupt.

        A line that ends with a backslash goes on; one that begins with three quotes goes on to the
        next three.
        """
        line = self._line("> ")
        if line.lstrip().startswith(QUOTES):
            return self._quoted(line.lstrip()[len(QUOTES) :])
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._line("… "))
        return "\n".join(lines)

    def _quoted(self, first: str) -> str:
        lines = [first]
        while QUOTES not in lines[-1]:
            lines.append(self._line("… "))
        lines[-1] = lines[-1].partition(QUOTES)[0]
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str:
        if not self.interactive:
            line = sys.stdin.readline()
            if not line:
                raise EOFError
            return line.rstrip("\n")
        return input(self._painted(prompt))

    def _painted(self, prompt: str) -> str:
        if not self._style.enabled:
            return prompt
        painted = self._style.paint(prompt, "bold", "cyan")
        if self._readline is None:
            return painted
        # Between \x01 and \x02 is what takes no column: readline counts them for its editing.
        start, _, end = painted.partition(prompt)
        return f"\x01{start}\x02{prompt}\x01{end}\x02"

    def close(self) -> None:
        """Writes the history, for this user only."""
        if self._readline is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._readline.set_history_length(HISTORY_LINES)
            self._readline.write_history_file(self._file)
            self._file.chmod(0o600)
        except OSError:
            pass  # A history that can't be kept is no reason to fail.


def _readline(completions: list[str]):  # type: ignore[no-untyped-def]
    try:
        import readline
    except ImportError:
        return None

    def complete(text: str, number: int) -> str | None:
        # Only commands, and only at the line's beginning.
        near = [one for one in completions if text and one.startswith(text)]
        return near[number] + " " if number < len(near) and readline.get_begidx() == 0 else None

    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    return readline
