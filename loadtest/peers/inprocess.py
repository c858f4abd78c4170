"""Penstock's library beside llama.cpp, OpenVINO GenAI, vLLM and transformers, in one run:
`python loadtest/peers/inprocess.py --help`.

Each loads its model once, in a process of its own environment, and warms up. Then they take turns:
a round is every piece of work on every system, one computing at a time. A probe of the machine's
limits runs before each round. Medians go to a JSON file, a Markdown table and a bar chart.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from loadtest.peers.command import chosen, peers_parser
from loadtest.peers.library.measure import Measurement, measure
from loadtest.peers.library.report import draw_chart, to_markdown
from loadtest.peers.library.systems import NAMES, make_system
from loadtest.peers.library.work import SMOKE_WORK, WORK
from loadtest.peers.servers import SetupError
from loadtest.report.facts import ROOT, without_folders
from loadtest.report.files import Report, say
from loadtest.roofline.cost import model_cost

PROGRAM = "loadtest/peers/inprocess.py"


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 1 where a system failed; 2 where something isn't installed."""
    command = peers_parser(PROGRAM, __doc__, "systems", NAMES, seconds=780.0)
    flags = command.parse_args(arguments)
    try:
        model, systems = chosen(flags.model, flags.systems, make_system)
    except SetupError as error:
        say(f"inprocess: {error}")
        return 2
    cost = model_cost(model)
    report = Report("inprocess", PROGRAM, flags, arguments)
    own = {
        "model": model.name,
        "model_cost": cost.to_dict(),
        "commands": {s.name: [*map(without_folders, s.command)] for s in systems},
    }

    def save(measurement: Measurement) -> None:
        facts = report.facts(**own)
        report.save(facts, measurement.to_dict(), to_markdown(measurement, facts, cost))

    measurement = measure(
        systems,
        SMOKE_WORK if flags.smoke else WORK,
        rounds=min(flags.rounds, 2) if flags.smoke else flags.rounds,
        budget=flags.budget,
        logs=ROOT / "loadtest" / "out" / "inprocess",
        save=save,
    )
    report.finish(
        measurement.to_dict(),
        lambda facts: to_markdown(measurement, facts, cost),
        draw=lambda path: draw_chart(measurement, cost, path),
        section="inprocess",
        caption="tokens per second",
        **own,
    )
    return int(any(outcome.failures for outcome in measurement.outcomes))


if __name__ == "__main__":
    sys.exit(main())
