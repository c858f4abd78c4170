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

from loadtest.report import Document, Flags, Measurement, chart, distribution, machine_line, say
from loadtest.report.facts import ROOT
from loadtest.report.table import table
from loadtest.worker_host.cases import Case, cases
from loadtest.worker_host.stand_ins import KERNEL_SECONDS, OPERATION_SECONDS, REPLAY_SECONDS
from penstock.process.machine import version_of

PACKAGES = ("shared", "services", "kernels")
MINUTES = 5


def measure(flags: Flags) -> Document:
    with tempfile.TemporaryDirectory() as folder:
        roots = {"now": ROOT}
        if flags.against:
            roots[flags.against] = check_out(flags.against, Path(folder))
        rows = measure_all(roots, flags.steps, flags.rounds)
    versions = {name: version_of(name) for name in ("torch", "triton", "numpy")}
    return {"versions": versions, "rows": rows}


def check_out(revision: str, folder: Path) -> Path:
    """The packages as they were then."""
    packed = folder / "packages.tar"
    command = ["git", "-C", str(ROOT), "archive", "--output", str(packed), revision, *PACKAGES]
    subprocess.run(command, check=True, timeout=60)
    shutil.unpack_archive(packed, folder, filter="data")
    return folder


def measure_all(versions: dict[str, Path], steps: int, rounds: int) -> list[dict[str, Any]]:
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


NAMES = {"sequences": "{case}", "version": "{version}"}
STEPS = {
    **NAMES,
    "p50": "{p50:,.0f}",
    "p99": "{p99:,.0f}",
    "launches": "{launches:g}",
    "of Triton's": "{of_triton:g}",
    "steps": "{steps}",
}


def report(document: Document) -> str:
    rows = document["rows"]
    used = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    parts = {part: f"{{parts[{part}][p50]:.0f}}" for part in rows[0]["parts"]}
    counted = [{**row, "of_triton": sum(row["kernels"].values())} for row in rows]
    return (
        f"{machine_line(document)}; {used}\n\n"
        "Microseconds of the host's processor for a decode step at contexts of 1,000 tokens, with "
        "a chunk of a prompt where that is said, and device launches beside the graph's replay. "
        "Assumed: "
        f"{1e6 * KERNEL_SECONDS:.0f} for a Triton launch, {1e6 * REPLAY_SECONDS:.0f} for a replay, "
        f"{1e6 * OPERATION_SECONDS:.0f} for an operation of torch's that a CPU doesn't make: the "
        f"head's two and the copy of the sampler's numbers.\n\n{table(STEPS, counted)}\n"
        f"By part, p50 (p99 in worker_host.json):\n\n{table({**NAMES, **parts}, rows)}\n"
        "![microseconds of a step by part](worker_host.png)\n"
    )


def draw(path: Path, document: Document) -> None:
    rows = document["rows"]
    names = [f"{row['case']}: {row['version']}" for row in rows]
    left = [0.0] * len(rows)
    with chart(path, size=(10, 0.3 * len(rows) + 1.5)) as axes:
        for number, part in enumerate(rows[0]["parts"]):
            widths = [row["parts"][part]["p50"] for row in rows]
            shade = {"color": f"C{number % 10}", "alpha": 1 - number // 10 / 2}
            axes.barh(names, widths, left=left, label=part, **shade)
            left = [before + width for before, width in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.set(xlabel="us of a step, p50 of each part")
        axes.legend(fontsize=7, ncols=2)


COMMAND = Measurement(
    "worker_host",
    __doc__,
    measure,
    report,
    {
        "--steps": (200, "timed in each turn of a case"),
        "--rounds": (3, "turns of each version"),
        "--against": {"help": "a revision of this repository to take turns with"},
    },
    draw=draw,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
