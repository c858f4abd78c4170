"""What a decode step costs the worker's host on a GPU machine, measured without a GPU:
`python -m loadtest.worker_host --help`.

The worker's own runner, slots, forward pass with graph buckets, uploads and sampler take real plans
and give real results, two steps in flight.  Left out is what the device would do: a Triton launch
and the replay of a graph wait for as long as such a call takes (stand_ins.py), logits are whatever
lies in memory, and copies to the device stay on the host.  So a step's time is the host's own work
and the assumed time of its calls, which the tables count.  Times are of the thread's processor, not
of the clock on the wall: who else uses this machine doesn't show.

With --against REVISION, processes of both versions take turns.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.report.facts import ROOT
from loadtest.report.figures import distribution
from loadtest.report.files import Report, parser, say
from loadtest.worker_host.cases import Case, cases
from loadtest.worker_host.report import draw, report
from penstock.machine import version_of

PROGRAM = "-m loadtest.worker_host"
PACKAGES = ("shared", "services", "kernels")
MINUTES = 5


def main() -> None:
    command = parser(PROGRAM, __doc__)
    command.add_argument("--steps", type=int, default=200, help="timed in each turn of a case")
    command.add_argument("--rounds", type=int, default=3, help="turns of each version")
    command.add_argument("--against", help="a revision of this repository to take turns with")
    flags = command.parse_args()
    written = Report("worker_host", PROGRAM, flags)
    with tempfile.TemporaryDirectory() as folder:
        versions = {"now": ROOT}
        if flags.against:
            versions[flags.against] = check_out(flags.against, Path(folder))
        rows = measure(versions, flags.steps, flags.rounds)
    written.finish(
        {"rows": rows},
        lambda facts: report(facts, rows),
        draw=lambda path: draw(rows, path),
        versions={name: version_of(name) for name in ("torch", "triton", "numpy")},
    )


def check_out(revision: str, folder: Path) -> Path:
    """The packages as they were then."""
    packed = folder / "packages.tar"
    command = ["git", "-C", str(ROOT), "archive", "--output", str(packed), revision, *PACKAGES]
    subprocess.run(command, check=True, timeout=60)
    shutil.unpack_archive(packed, folder, filter="data")
    return folder


def measure(versions: dict[str, Path], steps: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each case and version, of all its steps in all rounds."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for turn in range(rounds):
        for case in cases():
            for version, root in versions.items():
                say(f"round {turn + 1}: {case.name}, {version}")
                found.setdefault((case.name, version), []).append(turn_of(case, root, steps))
    return [
        {**figures(turns), "case": case, "version": version}
        for (case, version), turns in found.items()
    ]


def turn_of(case: Case, root: Path, steps: int) -> dict[str, Any]:
    paths = [*(str(root / name) for name in PACKAGES), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.worker_host.child", str(steps)],
        input=json.dumps([asdict(case)]),
        env=environment,
        cwd=root,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60 * MINUTES,
    )
    return dict(json.loads(done.stdout))


def figures(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Microseconds of a step; launches of one."""
    total = micro(turn["total"] for turn in turns)
    first = turns[0]
    return {
        "steps": total["count"],
        "p50": total["p50"],
        "p99": total["p99"],
        "parts": {part: micro(turn["parts"][part] for turn in turns) for part in first["parts"]},
        **{name: first[name] for name in ("kernels", "operations", "replays")},
        "launches": sum(first["kernels"].values()) + sum(first["operations"].values()),
    }


def micro(turns: Iterable[list[float]]) -> dict[str, float]:
    return distribution((seconds for turn in turns for seconds in turn), 1e6)


if __name__ == "__main__":
    main()
