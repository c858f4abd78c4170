"""Penstock beside vLLM and llama.cpp, in one run: `python -m loadtest.peers.compare --help`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.peers.cells import CELLS, SMOKE_CELLS, Cell
from loadtest.peers.comparison import Comparison, number, peers_rows
from loadtest.peers.servers import NAMES, Server, make_server
from loadtest.report import Document, markdown_table
from penstock_bench.load.report import Summary

_COLUMNS = {
    "output tok/s": "output_tokens_per_s",
    "req/s": "requests_per_s",
    "TTFT p50, ms": "ttft_p50_ms",
    "TTFT p99, ms": "ttft_p99_ms",
    "inter-token p50, ms": "inter_token_p50_ms",
    "p99": "inter_token_p99_ms",
    "end to end p50, ms": "end_to_end_p50_ms",
}
_COUNTS = {"completed": "completed", "cut off": "cut_off", "failed": "failed"}


@dataclass(frozen=True)
class Figure:
    """A median over the rounds; lower_bound where a run that enters it ended too early to know."""

    value: float
    lower_bound: bool = False

    def __str__(self) -> str:
        return f"{'> ' if self.lower_bound else ''}{number(self.value)}"


def medians(runs: Sequence[Summary]) -> dict[str, Figure | None]:
    """Medians of the figures that the table shows; None where no run has it."""
    return {key: _median([_figure(run, key) for run in runs]) for key in _COLUMNS.values()}


def _figure(run: Summary, key: str) -> Figure | None:
    if key.endswith("_per_s"):
        return Figure(getattr(run, key))
    latency, quantile, unit = key.rsplit("_", 2)
    distribution = getattr(run, f"{latency}_{unit}")
    if distribution is None:
        return None
    return Figure(getattr(distribution, quantile), quantile in distribution.lower_bounds)


def _median(figures: Sequence[Figure | None]) -> Figure | None:
    known = [figure for figure in figures if figure is not None]
    if not known:
        return None
    value = statistics.median(figure.value for figure in known)
    return Figure(value, any(figure.lower_bound for figure in known))


class Servers(Comparison):
    """Penstock beside vLLM and llama.cpp, in one run.

    Each server is started and stays. Then they take turns: a round is every workload on every
    server, one computing at a time; the others are stopped with SIGSTOP. Medians go to a JSON file,
    a Markdown table and a bar chart.
    """

    name, label = "comparison", "output tokens/s"
    peers, pieces, kind, names = "servers", "cells", Cell, NAMES
    work, smoke_work, seconds = CELLS, SMOKE_CELLS, 660.0

    def make(self, name: str, model: Path) -> Server:
        return make_server(name, model)

    def figures(self, work: Cell, runs: list[Summary]) -> Document:
        found = {key: figure and asdict(figure) for key, figure in medians(runs).items()}
        return {"medians": found, "runs": [run.to_dict() for run in runs]}

    def median(self, document: Document, server: str, cell: Cell, key: str) -> Figure | None:
        figures = document["servers"][server]["cells"].get(cell.name, {"medians": {}})
        found = figures["medians"].get(key)
        return found and Figure(**found)

    def rate(self, document: Document, peer: str, work: Cell) -> float | None:
        figure = self.median(document, peer, work, "output_tokens_per_s")
        return figure and figure.value

    def tables(self, document: Document) -> list[str]:
        servers = document["servers"]
        version = ["version", *(server["version"] for server in servers.values())]
        rows = peers_rows(servers, "start to ready, s", 1 + len(servers))
        parts = [
            f"medians of {document['rounds']} rounds, the servers in turn.",
            markdown_table(["", *servers], [version, *rows]),
        ]
        for cell in self.work_of(document):
            parts.append(
                f"**{cell.name}** ({cell.requests} requests, {cell.seconds:g} s at most)\n"
            )
            parts.append(self._cell_table(document, cell))
        return parts

    def notes(self, document: Document) -> list[str]:
        notes = super().notes(document)
        servers = document["servers"]
        runs = {
            f"{name}, {cell}": found["runs"]
            for name, server in servers.items()
            for cell, found in server["cells"].items()
        }
        if any(run["cut_off"] for found in runs.values() for run in found):
            notes.append(
                "Cut off: the cell's time was over before these requests had ended. Their tokens "
                "count in tok/s; `>` marks a latency that would have been longer still."
            )
        for where, found in runs.items():
            if errors := sorted({kind for run in found if run["failed"] for kind in run["errors"]}):
                notes.append(f"{where}: {', '.join(errors)}.")
        return notes

    def _cell_table(self, document: Document, cell: Cell) -> str:
        rows = []
        for name, server in document["servers"].items():
            if self.takes(document, name, cell):
                runs = server["cells"].get(cell.name, {"runs": []})["runs"]
                figures = (self.median(document, name, cell, key) for key in _COLUMNS.values())
                counts = (sum(run[key] for run in runs) for key in _COUNTS.values())
                rows.append([name, *(str(each or "–") for each in figures), *map(str, counts)])
        return markdown_table(["server", *_COLUMNS, *_COUNTS], rows)


SERVERS = Servers()
COMMAND = SERVERS.command()

if __name__ == "__main__":
    sys.exit(COMMAND.main())
