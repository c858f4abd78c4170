"""`python -m loadtest.gpu`, which run.sh starts: every part in a process of its own, then the
report."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from loadtest.gpu import plots
from loadtest.gpu.job import FAILED, OUT_OF_TIME, part_file, write_json
from loadtest.gpu.leaving import end_group, leave_at_signals
from loadtest.gpu.parts import PARTS, Part
from loadtest.gpu.report import to_markdown
from loadtest.report.facts import ROOT, now, run_facts
from penstock.machine import version_of

GRACE = 5.0
"""Seconds beyond its time that a part gets to end by itself."""
REPORT_SECONDS = 15.0
LEAVING = 2.0
"""Seconds after which a part that was told to end is killed."""
MOST = 1.5
"""Of a part's own time, what it may have where the parts before it left some."""
DISTRIBUTIONS = ("torch", "triton", "transformers", "numpy", "pyzmq", "msgspec", "tokenizers")


def main() -> int:
    """Exit status: 0, 1 where a part failed."""
    flags = _parser().parse_args()
    leave_at_signals()  # So that what runs is ended too.
    chosen = [part for part in PARTS if flags.parts is None or part.name in flags.parts]
    ends = time.monotonic() + flags.seconds - REPORT_SECONDS
    started = now()
    _clear(flags.output)
    document: dict[str, Any] = {"dry": flags.dry, "device": device(), "versions": versions()}
    for number, part in enumerate(chosen):
        later = sum(other.seconds for other in chosen[number + 1 :])
        seconds = allowance(part, ends - time.monotonic(), later)
        print(f"{part.name}: up to {seconds:.0f} s", file=sys.stderr, flush=True)
        ended = run_part(part, flags.output, flags.work, seconds, dry=flags.dry)
        print(f"{part.name}: {ended}", file=sys.stderr, flush=True)
        document |= _facts(flags, started)
        document["parts"] = merged(flags.output, chosen)
        write_json(flags.output / "results.json", document)
    document["charts"] = plots.draw(document, flags.output)
    write_json(flags.output / "results.json", document)
    text = to_markdown(document)
    (flags.output / "results.md").write_text(text)
    print(text)
    return int(any(each["status"] == FAILED for each in document["parts"].values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.gpu")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS])
    return parser


def allowance(part: Part, left: float, later: float) -> float:
    """Seconds for a part: its own time, and what the others don't need, within MOST."""
    return max(0.0, min(MOST * part.seconds, max(part.seconds, left - later), left))


def run_part(part: Part, output: Path, work: Path, seconds: float, *, dry: bool) -> str:
    """How it ended. Whatever it started and left behind in its process group is ended too."""
    command = [sys.executable, "-m", "loadtest.gpu.job", part.name, "--output", str(output)]
    command += ["--work", str(work), "--seconds", f"{seconds:.1f}", *(["--dry"] if dry else [])]
    logs = output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    over_time = False
    with open(logs / f"{part.name}.log", "wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            process.wait(seconds + GRACE)
        except subprocess.TimeoutExpired:
            over_time = True
        finally:
            end_group(process, LEAVING)
    return settle(part, output, process.returncode, over_time=over_time)


def settle(part: Part, output: Path, status: int, *, over_time: bool) -> str:
    """Says in the part's file how it ended where it couldn't itself. Returns that."""
    path = part_file(output, part.name)
    document = {"part": part.name, "rows": [], "notes": [], "seconds": 0.0, "status": "begun"}
    if path.is_file():
        document |= json.loads(path.read_text())
    if document["status"] == "begun":
        reason = f"the process ended with status {status}; its log says more"
        if over_time:
            reason = "it was ended when its time was over"
        document |= {"status": OUT_OF_TIME if over_time else FAILED, "reason": reason}
        write_json(path, document)
    return f"{document['status']} {document.get('reason', '')}".strip()


def merged(output: Path, chosen: list[Part]) -> dict[str, Any]:
    """Of all parts that have run so far."""
    paths = {part.name: part_file(output, part.name) for part in chosen}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}


def device() -> str:
    """Name, driver and memory, as nvidia-smi has them; that there is none."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total"]
    try:
        done = subprocess.run(
            [*command, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "no GPU"
    return done.stdout.strip().splitlines()[0]


def versions() -> dict[str, str | None]:
    return {name: version_of(name) for name in DISTRIBUTIONS}


def _facts(flags: argparse.Namespace, started: Any) -> dict[str, Any]:
    options = [*(["--dry"] if flags.dry else []), "WHEELS"]
    options += ["--parts", *flags.parts] if flags.parts else []
    facts = run_facts("", [], started)
    return {**facts, "command": " ".join(["loadtest/gpu/run.sh", *options])}


def _clear(output: Path) -> None:
    """What a run before has left."""
    for folder in ("parts", "logs"):
        shutil.rmtree(output / folder, ignore_errors=True)
    for name in ("results.json", "results.md", *plots.NAMES):
        (output / name).unlink(missing_ok=True)
    output.mkdir(parents=True, exist_ok=True)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
