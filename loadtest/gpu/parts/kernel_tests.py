"""The kernels' tests, and the CUDA worker's where there are some, on this device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec

from loadtest.gpu.job import Job, OutOfTime
from loadtest.report import ROOT

OUTCOME = re.compile(r"\b(PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b")
TEST = re.compile(r"tests/\S+::\S+")
MOST_PROCESSES = 12
MOST_SECONDS = 120
"""Seconds that one test may take."""
TIMED_OUT = 124
"""Exit status of `timeout` where it ended the command."""


def run(job: Job) -> None:
    run_tests(job, job.extent.features if job.part.name == "features" else job.extent.tests)


def run_tests(job: Job, patterns: tuple[str, ...]) -> None:
    """Files and folders, in what is left of the part's time. Raises OutOfTime where that was not
    enough, RuntimeError where none ran."""
    places = found(patterns)
    for pattern in patterns:
        if not found([pattern]):
            job.note(f"not present: {pattern}")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--tb=short"]
    # One that hangs is ended, and the others' outcomes are known.
    command += ["--timeout", f"{min(MOST_SECONDS, max(job.left - 10, 5)):.0f}"]
    workers = min(MOST_PROCESSES, os.cpu_count() or 1)
    if not job.extent.dry and find_spec("xdist") is not None:
        command += ["-n", str(workers)]
    job.need(10.0)
    outcomes, failed, ended = watch([*command, *job.extent.test_arguments, *places], job.left - 5)
    counts = {name.lower(): count for name, count in sorted(outcomes.items())}
    job.row(what="tests", tests=places, ended=ended, failed_tests=failed, counts=counts)
    if not ended:
        raise OutOfTime
    if not outcomes:
        raise RuntimeError("no test ran; the log says why")
    for name in failed:
        job.fault(f"{name} failed")


def found(patterns: tuple[str, ...] | list[str]) -> list[str]:
    """Files and folders, relative to the repository."""
    return [
        str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(pattern))
    ]


def watch(command: list[str], seconds: float) -> tuple[Counter[str], list[str], bool]:
    """How often each outcome came, which tests failed, and whether pytest ended by itself."""
    # In this part's own process group, so that whoever ends the part ends pytest too.
    limited = ["timeout", "--foreground", f"{max(seconds, 1.0):.0f}", *command]
    outcomes: Counter[str] = Counter()
    failed: dict[str, None] = {}
    with subprocess.Popen(limited, cwd=ROOT, text=True, stdout=subprocess.PIPE) as process:
        for line in process.stdout or ():
            sys.stderr.write(line)
            take(line, outcomes, failed)
    return outcomes, list(failed), process.returncode != TIMED_OUT


def take(line: str, outcomes: Counter[str], failed: dict[str, None]) -> None:
    """A line of `pytest -v`; those of its summary, which begin with the outcome and say why,
    repeat what was counted."""
    outcome, test = OUTCOME.search(line), TEST.search(line)
    if outcome is None or test is None or line.startswith(outcome[0]):
        return
    outcomes[outcome[0]] += 1
    if outcome[0] in ("FAILED", "ERROR"):
        failed[test[0]] = None
