"""Argument parsers of the command line: short errors, help that fits the terminal."""

from __future__ import annotations

import argparse
import difflib
import shutil
import sys
import textwrap
from collections.abc import Container, Sequence
from typing import Any, NoReturn

from penstock.config.foreign_names import meant

USAGE = 2
MAX_WIDTH = 100


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Paragraphs are filled; the epilog keeps its lines, since it holds examples."""

    def __init__(self, prog: str, **keywords: Any) -> None:
        width = min(MAX_WIDTH, shutil.get_terminal_size().columns)
        super().__init__(prog, max_help_position=30, width=max(width - 2, 38), **keywords)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


class Parser(argparse.ArgumentParser):
    """Takes no abbreviated flags: what `--max-n` means would change with the next setting."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(
            **{"allow_abbrev": False, "formatter_class": Formatter, "add_help": False, **keywords}
        )
        self.add_argument("-h", "--help", action="help", help="Show this help and leave.")

    def error(self, message: str) -> NoReturn:
        """One line that says what is wrong, and one that says where the help is."""
        self.exit(USAGE, f"{self.prog}: error: {message}\nTry `{self.prog} --help`.\n")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        # The plain way takes all words from before the first flag: `run MODEL --raw PROMPT` had one
        # too many. It is for subcommands only, which the other can't do.
        parse = self.parse_known_args if self._subparsers else self.parse_known_intermixed_args
        given = sys.argv[1:] if args is None else args
        known = self._option_string_actions
        arguments, unknown = parse([with_dashes(word, known) for word in given], namespace)
        if unknown:
            self.error(self._unknown(unknown))
        return arguments

    def _unknown(self, unknown: list[str]) -> str:
        flag = next((text for text in unknown if text.startswith("-")), None)
        if flag is None:
            return f"too many arguments: {' '.join(unknown)}"
        name = flag.partition("=")[0]
        near = meant(name, [one for one in self._option_string_actions if one[:2] == "--"])
        return f"there is no flag {name}" + (f"; did you mean {near}?" if near else "")


def with_dashes(argument: str, known: Container[str]) -> str:
    """`--max_model_len` as `--max-model-len`, which vLLM's parser takes for the same."""
    name, equals, value = argument.partition("=")
    dashed = name.replace("_", "-")
    return dashed + equals + value if name[:2] == "--" and dashed in known else argument


def nearest(word: str, words: Sequence[str]) -> str | None:
    """The one that was most likely meant."""
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return near[0] if near else None


def examples(*lines: str) -> str:
    """An epilog."""
    return "Examples:\n" + "\n".join(f"  {line}" for line in lines)


def warn(message: str) -> None:
    """A line on stderr."""
    print(f"penstock: {message}", file=sys.stderr)
