"""A command that measures, and its files: NAME.json, NAME.md, NAME.png, a section of the README."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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

    flags: of them, `output` is the folder.  arguments: the command's; None: this process's.
    """

    def __init__(
        self, name: str, program: str, flags: Flags, arguments: Sequence[str] | None = None
    ) -> None:
        self._name, self._program, self._folder = name, program, Path(flags.output)
        self._arguments = list(sys.argv[1:] if arguments is None else arguments)
        self._started = now()

    def facts(self, **more: Any) -> Document:
        """Command, times, commit and machine, and what else is given."""
        return {**run_facts(self._program, self._arguments, self._started), **more}

    def save(self, facts: Document, document: Document, text: str) -> None:
        """Writes the JSON and the Markdown file; may be called again as more is known."""
        self._folder.mkdir(parents=True, exist_ok=True)
        whole = json_text({**facts, **document})
        self.path("json").write_text(whole + "\n", encoding="utf-8")
        self.path("md").write_text(text, encoding="utf-8")

    def path(self, suffix: str) -> Path:
        return self._folder / f"{self._name}.{suffix}"


@dataclass(frozen=True)
class Measurement:
    """The command line of a measurement."""

    name: str  # of its files
    description: str | None
    measure: Callable[[Flags], Document | Iterator[Document]]
    """Of several, each is written when it comes, and the last is the result.  Raises SetupError,
    StartupError or NotThere where something is missing."""
    text: Callable[[Document], str]  # Markdown, of all that the JSON file holds
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
        flags = self._parser(program).parse_args(arguments)
        report = Report(self.name, program, flags, arguments)
        document: Document = {}
        try:
            for document in self._documents(flags):
                facts = report.facts()
                text = self.text({**facts, **document})
                report.save(facts, document, text)
        except (SetupError, StartupError, NotThere) as error:
            say(f"{self.name}: {error}")
            return 2
        if self.draw is not None:
            self.draw(report.path("png"), document)
        if self.section and flags.write_readme:
            chart = f"\n![{self.caption}](results/{self.name}.png)" if self.caption else ""
            replace_section(README, self.section, text + chart)
        print(text)
        return int(bool(self.faults(document)))

    def _documents(self, flags: Flags) -> Iterator[Document]:
        found = self.measure(flags)
        return found if isinstance(found, Iterator) else iter([found])

    def _parser(self, program: str) -> argparse.ArgumentParser:
        made = argparse.ArgumentParser(prog=f"python {program}", description=self.description)
        made.add_argument("--output", type=Path, default=RESULTS, metavar="FOLDER")
        if self.section:
            made.add_argument(
                "--write-readme", action="store_true", help="put the result into loadtest/README.md"
            )
        for flag, keywords in self.flags.items():
            made.add_argument(flag, **_keywords(keywords))
        return made


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
