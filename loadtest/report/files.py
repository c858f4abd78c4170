"""A command that measures, and its files: NAME.json, NAME.md, NAME.png, a section of the README."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.local import NotThere
from loadtest.report.facts import ROOT, now, run_facts
from loadtest.report.json_text import json_text
from loadtest.report.readme import README, replace_section
from penstock.errors import StartupError

RESULTS = ROOT / "loadtest" / "results"

Flags = argparse.Namespace
Facts = dict[str, Any]
"""Command, times, commit and machine, and what else belongs to them."""
Document = dict[str, Any]
"""What was measured, as the JSON file has it; the texts are made of it and the facts."""


class SetupError(RuntimeError):
    """Something that is measured isn't there; the message says how to get it."""


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

    def facts(self, **more: Any) -> Facts:
        """Command, times, commit and machine, and what else is given."""
        return {**run_facts(self._program, self._arguments, self._started), **more}

    def save(self, facts: Facts, document: Document, text: str) -> None:
        """Writes the JSON and the Markdown file; may be called again as more is known."""
        self._flags.output.mkdir(parents=True, exist_ok=True)
        whole = json_text({**facts, **document})
        self.path("json").write_text(whole + "\n", encoding="utf-8")
        self.path("md").write_text(text, encoding="utf-8")

    def finish(
        self,
        document: Document,
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


@dataclass(frozen=True)
class Measurement:
    """The command line of a measurement."""

    name: str  # of its files
    description: str | None
    measure: Callable[[Flags], Document]
    """Raises SetupError, StartupError or NotThere where something is missing."""
    text: Callable[[Document], str]  # Markdown, of facts and document together
    flags: Mapping[str, Any] = field(default_factory=dict)
    """By flag: its default and what it means, or keywords of `add_argument`."""
    draw: Callable[[Path, Document], None] | None = None  # the chart
    caption: str = ""  # of the chart in the README
    section: str = ""  # of the README
    faults: Callable[[Document], object] = lambda document: None
    """What isn't as it should be; nothing, or empty, if all is."""

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Exit status: 0; 1 where there are faults; 2 where something is missing."""
        program = program_of(self.name)
        made = parser(program, self.description, section=bool(self.section))
        for flag, keywords in self.flags.items():
            made.add_argument(flag, **_keywords(keywords))
        flags = made.parse_args(arguments)
        report, draw = Report(self.name, program, flags, arguments), self.draw
        try:
            document = self.measure(flags)
        except (SetupError, StartupError, NotThere) as error:
            say(f"{self.name}: {error}")
            return 2
        report.finish(
            document,
            lambda facts: self.text({**facts, **document}),
            draw=draw and (lambda path: draw(path, document)),
            section=self.section,
            caption=self.caption,
        )
        return int(bool(self.faults(document)))


def _keywords(flag: tuple[Any, str] | Mapping[str, Any]) -> Mapping[str, Any]:
    """Of `add_argument`. A default says the type; one that is False can be set."""
    if not isinstance(flag, tuple):
        return flag
    default, words = flag
    if default is False:
        return {"action": "store_true", "help": words}
    return {"type": type(default), "default": default, "help": words or None}


def program_of(name: str) -> str:
    """What follows `python` on the command line: `-m` and a module."""
    spec = sys.modules["__main__"].__spec__
    module = spec.name.removesuffix(".__main__") if spec is not None else ""
    return f"-m {module if module.startswith('loadtest.') else f'loadtest.{name}'}"
