"""The files of one measurement: NAME.json, NAME.md and NAME.png, and its section of the README."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtest.report.facts import ROOT, now, run_facts
from loadtest.report.readme import README, replace_section

RESULTS = ROOT / "loadtest" / "results"

Facts = dict[str, Any]


def parser(program: str, description: str | None, *, section: bool = False) -> Any:
    """A parser that has --output FOLDER, and --write-readme where the README has a section.

    program: what follows `python` on the command line.
    """
    made = argparse.ArgumentParser(prog=f"python {program}", description=description)
    made.add_argument("--output", type=Path, default=RESULTS, metavar="FOLDER")
    if section:
        made.add_argument(
            "--write-readme", action="store_true", help="put the result into loadtest/README.md"
        )
    return made


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


class Report:
    """What a measurement writes. Make it before the measurement begins: the files say when that
    was.

    flags: as `parser` has read them.  arguments: which it read; None: this process's.
    """

    def __init__(
        self,
        name: str,
        program: str,
        flags: argparse.Namespace,
        arguments: Sequence[str] | None = None,
    ) -> None:
        self._name, self._program, self._flags = name, program, flags
        self._arguments = list(sys.argv[1:] if arguments is None else arguments)
        self._started = now()

    @classmethod
    def at(cls, file: Path, program: str, arguments: Sequence[str] | None = None) -> Report:
        """Of a command whose --output names the JSON file itself."""
        return cls(file.stem, program, argparse.Namespace(output=file.parent), arguments)

    def facts(self, **more: Any) -> Facts:
        """Command, times, commit and machine, and what else is given."""
        return {**run_facts(self._program, self._arguments, self._started), **more}

    def save(self, facts: Facts, document: dict[str, Any], text: str) -> None:
        """Writes the JSON and the Markdown file; may be called again as more is known."""
        self._flags.output.mkdir(parents=True, exist_ok=True)
        whole = json.dumps({**facts, **document}, indent=1, ensure_ascii=False)
        self.path("json").write_text(whole + "\n", encoding="utf-8")
        self.path("md").write_text(text, encoding="utf-8")

    def finish(
        self,
        document: dict[str, Any],
        text: Callable[[Facts], str],
        *,
        draw: Callable[[Path], None] | None = None,
        section: str = "",
        caption: str = "",
        **facts: Any,
    ) -> None:
        """Writes everything and prints the text.

        draw: makes the chart.  section: of the README that is replaced by the text where
        --write-readme asks for it.  caption: of the chart there.
        """
        known = self.facts(**facts)
        written = text(known)
        self.save(known, document, written)
        if draw is not None:
            draw(self.path("png"))
        if section and self._flags.write_readme:
            chart = f"\n![{caption}](results/{self._name}.png)" if caption else ""
            replace_section(README, section, written + chart)
        print(written)

    def path(self, suffix: str) -> Path:
        return Path(self._flags.output) / f"{self._name}.{suffix}"
