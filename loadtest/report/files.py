"""A command that measures, and its files: NAME.json, NAME.md and, with a chart, NAME.png."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.local import NotThere
from loadtest.report.facts import ROOT, now, run_facts
from loadtest.report.json_text import json_text
from loadtest.report.table import sections
from penstock.errors import StartupError

RESULTS = ROOT / "loadtest" / "results"

Flags = argparse.Namespace
Document = dict[str, Any]
"""What was measured; the JSON file also says how and when."""


class SetupError(RuntimeError):
    """Something that is measured isn't there; the message says how to get it."""


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


class Report:
    """What a measurement writes. Make it before the measurement begins: the files say when that
    was.

    arguments: the command's; None: this process's.
    """

    def __init__(
        self, name: str, program: str, folder: Path, arguments: Sequence[str] | None = None
    ) -> None:
        self._name, self._program, self._folder = name, program, folder
        given = list(sys.argv[1:] if arguments is None else arguments)
        # Results say nothing of the folders of the machine that they were measured on.
        self._arguments = ["FOLDER" if each == str(folder) else each for each in given]
        self._started = now()

    def facts(self) -> Document:
        """Command, times, commit and machine."""
        return run_facts(self._program, self._arguments, self._started)

    def save(self, document: Document, text: str) -> None:
        """Writes the JSON and the Markdown file; may be called again as more is known."""
        self.path("json").parent.mkdir(parents=True, exist_ok=True)
        self.path("json").write_text(json_text(document) + "\n", encoding="utf-8")
        self.path("md").write_text(text, encoding="utf-8")

    def saved(self) -> Document:
        """What the JSON file holds; nothing where there is none."""
        path = self.path("json")
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}

    def path(self, suffix: str) -> Path:
        return self._folder / f"{self._name}.{suffix}"


@dataclass(frozen=True)
class Measurement:
    """The command line of a measurement."""

    name: str  # of its files
    description: str | None
    measure: Callable[[Flags], Document | Iterator[Document]]
    """Measures. Of several documents, each is written when it comes, and the last is the result; of
    none, nothing is written.
    Raises SetupError, StartupError or NotThere where something is missing."""
    text: Callable[[Document], str]  # Markdown, of all that was measured in a run
    flags: Mapping[str, Any] = field(default_factory=dict)
    """The default of each flag and what it means, or keywords of `add_argument`."""
    draw: Callable[[Path, Any], None] | None = None
    """The chart: of the run, or of several by their titles."""
    head: str = ""
    """What the page says before its runs, if it holds the newest run of each machine and model.
    Empty: the files hold one run."""
    title: Callable[[Document], str] = lambda run: f"{run['machine']['cpu']}, {run['model']}"
    """A run's, where none is given and there are several."""
    faults: Callable[[Document], object] = lambda document: None
    """What isn't as it should be; nothing, or empty, if all is."""

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Exit status: 0; 1 where there are faults; 2 where something is missing."""
        program = program_of(self.name)
        flags = self._parser(program).parse_args(arguments)
        report = Report(self.name, program, flags.output, arguments)
        document, saved = Document(), report.saved()
        if flags.page and not saved:
            say(f"{self.name}: {report.path('json')} is missing")
            return 2
        try:
            for found in () if flags.page else self._documents(flags):
                document = {**report.facts(), **found}
                saved = self._with(saved, document, flags) if self.head else document
                report.save(saved, self.page(saved))
        except (SetupError, StartupError, NotThere) as error:
            say(f"{self.name}: {error}")
            return 2
        if flags.page:
            report.save(saved, self.page(saved))
        if not (document or flags.page):
            return 0
        if self.draw is not None:
            self.draw(report.path("png"), saved)
        print(self.text(document) if document else self.page(saved))
        return int(bool(document and self.faults(document)))

    def page(self, saved: Document) -> str:
        """The Markdown file, of what the JSON file holds: a run, or runs by their titles."""
        if not self.head:
            return self.text(saved)
        runs = (f"## {title}\n\n{self.text(run)}" for title, run in saved.items())
        return sections([self.head, *runs])

    def _with(self, saved: Document, document: Document, flags: Flags) -> Document:
        return {**saved, flags.run or self.title(document): document}

    def _documents(self, flags: Flags) -> Iterator[Document]:
        found = self.measure(flags)
        return found if isinstance(found, Iterator) else iter([found])

    def _parser(self, program: str) -> argparse.ArgumentParser:
        made = argparse.ArgumentParser(prog=f"python {program}", description=self.description)
        made.add_argument("--output", type=Path, default=RESULTS, metavar="FOLDER")
        made.add_argument(
            "--page",
            action="store_true",
            help="measure nothing; write page and chart again from the figures in the JSON file",
        )
        if self.head:
            told = "title of this run, in place of one with the same (default: its model's)"
            made.add_argument("--run", metavar="TITLE", help=told)
        for flag, keywords in self.flags.items():
            made.add_argument(flag, **_keywords(keywords))
        return made


def _keywords(flag: tuple[Any, str] | Mapping[str, Any]) -> Mapping[str, Any]:
    """Keywords of `add_argument`. A default says the type; one that is False can be set."""
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
