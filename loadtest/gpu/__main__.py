"""`python -m loadtest.gpu`, which run.sh starts: every part in a process of its own, then the
report."""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest.gpu import archive
from loadtest.gpu.job import (
    ABSENT,
    BEGUN,
    DONE,
    FAILED,
    NOT_BEGUN,
    OUT_OF_TIME,
    new_document,
    part_file,
    process_parser,
    write_json,
)
from loadtest.gpu.machine import device, versions
from loadtest.gpu.parts import VISITS, Part
from loadtest.gpu.report import to_markdown
from loadtest.gpu.start import GO_ON
from loadtest.report import ROOT, say
from loadtest.report.files import Report

if TYPE_CHECKING:
    from collections.abc import Iterable

GRACE = 5.0
"""Seconds beyond its time that a part gets to end by itself."""
REPORT_SECONDS = 15.0
LEAVING = 2.0
"""Seconds after which a part that was told to end is killed."""
LEAST = 5.0
"""Seconds without which a part isn't begun."""
MOST = 1.5
"""The multiple of its own time that a part may have where the parts before it left some."""

REHEARSING = 8.0
"""The multiple of their time that parts get in a rehearsal, which counts processor seconds: a
machine that has other work, too, says nothing by its clock."""
UNENDING = 10.0
"""Seconds after which a killed process is left to the driver that holds it."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""SIGHUP: the terminal was closed."""


def main() -> int:
    """Exit status: 0; 1 where a part failed, 3 where none failed and one wasn't done in time."""
    parser = process_parser("loadtest.gpu")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--home", type=Path, help="where the archives go, after each part")
    parser.add_argument("--call", choices=VISITS, default="works")
    parser.add_argument("--parts", nargs="+", help="these of the call's; default: all")
    parser.add_argument("--go-on", action="store_true", help=GO_ON)
    flags = parser.parse_args()
    leave_at_signals()  # So that what runs is ended too.
    parts = VISITS[flags.call].parts
    if unknown := set(flags.parts or ()) - {part.name for part in parts}:
        own = ", ".join(part.name for part in parts)
        parser.error(f"{flags.call} has no parts {', '.join(sorted(unknown))}, but {own}")
    chosen = [part for part in parts if flags.parts is None or part.name in flags.parts]
    patience = REHEARSING if flags.dry else 1.0
    ends = time.monotonic() + patience * flags.seconds - REPORT_SECONDS
    report, text = Report("results", "", flags.output), ""
    cache = Cache()
    if not flags.go_on:
        _clear(flags.output)
    known = {
        "command": _command(flags),
        "dry": flags.dry,
        "device": device(),
        "versions": versions(),
        "cache": cache.counts(),
        "parts": merged(flags.output, chosen),
    }
    write_json(flags.output / "machine.json", known)  # Whatever happens to the parts.
    waiting = [part for part in chosen if not (flags.go_on and done(part, flags.output))]
    for number, part in enumerate(waiting):
        later = patience * sum(other.seconds for other in waiting[number + 1 :])
        given = replace(part, seconds=patience * part.seconds)
        seconds = allowance(given, ends - time.monotonic(), later)
        if seconds < LEAST:
            say(f"{part.name}: no time is left")
            continue
        say(f"{part.name}: up to {seconds:.0f} s")
        say(f"{part.name}: {run_part(part, flags, seconds)}")
        known |= {"parts": merged(flags.output, chosen), "cache": cache.counts()}
        document = {**report.facts(), **known}
        text = to_markdown(document)
        report.save(document, text)
        if flags.home:
            bring_home(flags, cache)
    print(text or "all of it had been done before")
    status = status_of(each["status"] for each in known["parts"].values())
    return status or (int(exceeds(known["parts"].values(), flags.seconds)) if flags.dry else 0)


def exceeds(parts: Iterable[dict[str, Any]], seconds: float) -> bool:
    """Whether a rehearsal's parts took more processor seconds than the call has. Says how many."""
    computed = sum(float(part.get("processor_seconds", 0.0)) for part in parts)
    say(f"{computed:.0f} processor seconds in all parts, of {seconds:.0f}")
    return computed > seconds


def status_of(parts: Iterable[str]) -> int:
    """The exit status of the whole, from how its parts ended."""
    ended = set(parts)
    return 1 if FAILED in ended else 3 if ended - {DONE, ABSENT} else 0


class Cache:
    """Triton's cache of compiled kernels, as far as this process was told of one."""

    def __init__(self) -> None:
        self.folder = Path(os.environ.get("TRITON_CACHE_DIR") or os.devnull)
        self.packed = self._carried = len(archive.entries(self.folder))

    def counts(self) -> dict[str, int]:
        """Entries that were there in the beginning, and now."""
        return {"carried": self._carried, "now": len(archive.entries(self.folder))}


def bring_home(flags: argparse.Namespace, cache: Cache) -> None:
    """Packs what is known, in case the next part takes the machine with it. The caller packs once
    more in the end."""
    archive.pack_results(flags.output, flags.home)
    now = cache.counts()["now"]
    if now != cache.packed:
        archive.pack_cache(cache.folder, flags.home)
        cache.packed = now


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
    over_time, before = False, _computed()
    with log_file.open("wb") as log:
        process = start_group("loadtest.gpu.job", options, log)
        try:
            process.wait(seconds + GRACE)
        except subprocess.TimeoutExpired:
            over_time = True
        finally:
            end_group(process, LEAVING)
    settle(part, flags.output, process.returncode, over_time=over_time)
    return count(part, flags.output, _computed() - before, dry=flags.dry)


def _computed() -> float:
    """Processor seconds of all processes that were started here, and waited for."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def count(part: Part, output: Path, computed: float, *, dry: bool) -> str:
    """Writes the processor seconds into the part's file; a rehearsal that needs more than a part
    may have has failed. Returns how the part ended."""
    path = part_file(output, part.name)
    document = json.loads(path.read_text())
    document["processor_seconds"] = round(computed, 1)
    if dry and document["status"] == DONE and computed > MOST * part.seconds:
        reason = f"{computed:.0f} processor seconds, of {MOST * part.seconds:.0f} at most"
        document |= {"status": FAILED, "reason": reason}
    write_json(path, document)
    return f"{document['status']} {document['reason']}".strip()


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
    """The results of all parts; those that haven't run say so."""
    found = {}
    for part in chosen:
        path = part_file(output, part.name)
        none = {**new_document(part), "status": NOT_BEGUN, "reason": "no time was left for it"}
        found[part.name] = json.loads(path.read_text()) if path.is_file() else none
    return found


def _command(flags: argparse.Namespace) -> str:
    options = [*(["--dry"] if flags.dry else []), "--call", flags.call, "WHEELS"]
    options += ["--parts", *flags.parts] if flags.parts else []
    return " ".join(["loadtest/gpu/run.sh", *options])


def _clear(output: Path) -> None:
    """What a run before has left."""
    for folder in ("parts", "logs"):
        shutil.rmtree(output / folder, ignore_errors=True)
    for name in ("results.json", "results.md", "machine.json"):
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
