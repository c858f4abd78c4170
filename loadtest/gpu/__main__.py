"""`python -m loadtest.gpu`, which run.sh starts: every part in a process of its own, then the
report."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from loadtest.gpu.job import (
    ABSENT,
    BEGUN,
    DONE,
    FAILED,
    OUT_OF_TIME,
    new_document,
    part_file,
    process_parser,
    write_json,
)
from loadtest.gpu.machine import device, versions
from loadtest.gpu.parts import PARTS, Part
from loadtest.gpu.report import to_markdown
from loadtest.gpu.start import GO_ON
from loadtest.report import ROOT, say
from loadtest.report.files import Report

GRACE = 5.0
"""Seconds beyond its time that a part gets to end by itself."""
REPORT_SECONDS = 15.0
LEAVING = 2.0
"""Seconds after which a part that was told to end is killed."""
LEAST = 5.0
"""Seconds without which a part isn't begun."""
MOST = 1.5
"""Of a part's own time, what it may have where the parts before it left some."""


UNENDING = 10.0
"""Seconds after which a killed process is left to the driver that holds it."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""SIGHUP: the terminal was closed."""


def main() -> int:
    """Exit status: 0, 1 where a part failed."""
    parser = process_parser("loadtest.gpu")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS])
    parser.add_argument("--go-on", action="store_true", help=GO_ON)
    flags = parser.parse_args()
    leave_at_signals()  # So that what runs is ended too.
    chosen = [part for part in PARTS if flags.parts is None or part.name in flags.parts]
    ends = time.monotonic() + flags.seconds - REPORT_SECONDS
    report, text = Report("results", "", flags), ""
    if not flags.go_on:
        _clear(flags.output)
    known = {
        "command": _command(flags),
        "dry": flags.dry,
        "device": device(),
        "versions": versions(),
        "parts": merged(flags.output, chosen),
    }
    waiting = [part for part in chosen if not (flags.go_on and done(part, flags.output))]
    for number, part in enumerate(waiting):
        later = sum(other.seconds for other in waiting[number + 1 :])
        seconds = allowance(part, ends - time.monotonic(), later)
        if seconds < LEAST:
            say(f"{part.name}: no time is left")
            continue
        say(f"{part.name}: up to {seconds:.0f} s")
        say(f"{part.name}: {run_part(part, flags, seconds)}")
        known["parts"] = merged(flags.output, chosen)
        document = report.facts(**known)
        text = to_markdown(document)
        report.save(document, {}, text)
    print(text)
    return int(any(each["status"] == FAILED for each in known["parts"].values()))


def allowance(part: Part, left: float, later: float) -> float:
    """Seconds for a part: its own time, and what the others don't need, within MOST."""
    return max(0.0, min(MOST * part.seconds, max(part.seconds, left - later), left))


def done(part: Part, output: Path) -> bool:
    """Whether an earlier run has measured all of it."""
    path = part_file(output, part.name)
    return path.is_file() and json.loads(path.read_text())["status"] in (DONE, ABSENT)


def run_part(part: Part, flags: argparse.Namespace, seconds: float) -> str:
    """How it ended. Whatever it started and left behind in its process group is ended too."""
    options = [part.name, "--seconds", f"{seconds:.1f}", *(["--dry"] if flags.dry else [])]
    options += ["--output", str(flags.output), "--work", str(flags.work)]
    log_file = flags.output / "logs" / f"{part.name}.log"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    over_time = False
    with log_file.open("wb") as log:
        process = start_group("loadtest.gpu.job", options, log)
        try:
            process.wait(seconds + GRACE)
        except subprocess.TimeoutExpired:
            over_time = True
        finally:
            end_group(process, LEAVING)
    return settle(part, flags.output, process.returncode, over_time=over_time)


def settle(part: Part, output: Path, status: int, *, over_time: bool) -> str:
    """Says in the part's file how it ended where it couldn't itself. Returns that."""
    path = part_file(output, part.name)
    document = json.loads(path.read_text()) if path.is_file() else new_document(part)
    if document["status"] == BEGUN:
        reason = f"the process ended with status {status}; its log says more"
        if over_time:
            reason = "it was ended when its time was over"
        document |= {"status": OUT_OF_TIME if over_time else FAILED, "reason": reason}
        write_json(path, document)
    return f"{document['status']} {document['reason']}".strip()


def merged(output: Path, chosen: list[Part]) -> dict[str, Any]:
    """Of all parts that have run so far."""
    paths = {part.name: part_file(output, part.name) for part in chosen}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}


def _command(flags: argparse.Namespace) -> str:
    options = [*(["--dry"] if flags.dry else []), "WHEELS"]
    options += ["--parts", *flags.parts] if flags.parts else []
    return " ".join(["loadtest/gpu/run.sh", *options])


def _clear(output: Path) -> None:
    """What a run before has left."""
    for folder in ("parts", "logs"):
        shutil.rmtree(output / folder, ignore_errors=True)
    for name in ("results.json", "results.md"):
        (output / name).unlink(missing_ok=True)
    output.mkdir(parents=True, exist_ok=True)


def leave_at_signals() -> None:
    """Makes SystemExit of them, once: what ends the started processes then isn't cut short by a
    second one.  One that is ignored, as nohup has SIGHUP, stays so."""
    for each in SIGNALS:
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, _leave)


def _leave(signum: int, _: Any) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + signum)


def start_group(module: str, options: list[str], log: Any) -> subprocess.Popen[bytes]:
    """`python -m module`, as the leader of a group. log: an open file for what it says."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *options],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def end_group(process: subprocess.Popen[bytes], grace: float = 0.0) -> None:
    """Ends a process that leads a group, and all of the group: SIGTERM, and SIGKILL to what is left
    after `grace` seconds; SIGKILL at once without a grace."""
    try:
        if grace and process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(grace)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    # What a broken driver holds can't be killed: whoever waited for it would never report.
    with suppress(subprocess.TimeoutExpired):
        process.wait(UNENDING)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
