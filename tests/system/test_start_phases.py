"""A start says where its time went: in the log, by the report pipe, and to `penstock doctor`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from penstock.prepare import load_manifest, prepare
from penstock.process.start_phases import StartPhases, born, read_phases
from penstock_worker.machine.doctor import examine_started
from penstock_worker.machine.start_check import examine_start
from testing.serving import PATIENCE, Server

CLOCK = 0.03
"""Seconds by which two clocks of a process's birth differ at most: the kernel counts in 10 ms."""
NAMES = {"supervisor", "worker 0", "engine", "fork-server", "gateway 0"}


def test_phases_are_parts_of_what_is_measured_from_outside(tiny_model: str) -> None:
    reading, writing = os.pipe()
    begun = time.monotonic()
    with Server(tiny_model, *_report(writing), pass_fds=(writing,)) as one:
        took = time.monotonic() - begun
        os.close(writing)
        with os.fdopen(reading) as pipe:
            start = json.loads(pipe.readline())["start"]
            assert set(start) == NAMES
            line = next(row for row in one.stderr.splitlines() if '"time until ready"' in row)
            for name, phases in start.items():
                pid = one.process.pid if name == "supervisor" else one.child(name)
                assert sum(each["seconds"] for each in phases) <= took + CLOCK
                times = psutil.Process(pid).cpu_times()
                spent = sum(each["processor_seconds"] for each in phases)
                assert 0 < spent <= times.user + times.system + CLOCK
                said = re.search(rf'{name.replace(" ", "_")}="([^"]+)"', line)
                assert said is not None
                assert [part.rsplit(" ", 1)[0] for part in _parts(said[1])] == [
                    each["name"] for each in phases
                ]
            # Which gateways needn't read again.
            assert "tokenizer" in {each["name"] for each in start["fork-server"]}
            read = {each["name"]: each.get("bytes", 0) for each in start["worker 0"]}
    files = load_manifest(prepare(tiny_model)).weights.files
    assert read.pop("weights read and laid out") == sum(Path(file).stat().st_size for file in files)
    assert not any(read.values())


def _report(writing: int) -> tuple[str, str]:
    return ("--report-fd", str(writing))


def _parts(said: str) -> list[str]:
    return re.sub(r" \([^)]*\)", "", said).split(", ")


def is_penstock(process: psutil.Process, others: set[psutil.Process]) -> bool:
    """Whether it runs, and is one of Penstock's that isn't one of these."""
    try:
        return process not in others and "penstock" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # A zombie, which others have yet to wait for, is one, too.
        return False


def test_doctor_starts_a_server_and_leaves_none(tiny_model: str) -> None:
    others = set(psutil.Process().children())
    findings = examine_started(tiny_model)
    assert all(finding.ok for finding in findings), findings
    start, *rest = findings
    phases = [finding for finding in rest if finding.seconds is not None]
    assert {each.name for each in phases} == NAMES
    supervisor = sum(each.seconds or 0.0 for each in phases if each.name == "supervisor")
    assert start.seconds == pytest.approx(supervisor)
    assert rest[-1].name == "disk"
    assert not [each for each in psutil.Process().children() if is_penstock(each, others)]


def test_doctor_says_why_a_start_failed(tiny_model: str) -> None:
    (found,) = examine_start(tiny_model, ["--num-kv-blocks", str(1 << 31)], [])
    assert not found.ok
    assert "num_kv_blocks" in found.text


def test_a_process_began_when_the_system_says() -> None:
    began = time.time() - (time.monotonic() - born())
    assert began == pytest.approx(psutil.Process().create_time(), abs=1.5)


def test_nothing_is_noted_before_a_file_is_named_nor_after_it_is_written(tmp_path: Path) -> None:
    phases, file = StartPhases(), tmp_path / "worker.phases"
    phases.passed("before")
    phases.report_to(file)
    phases.passed("imports")
    phases.done()
    phases.passed("behind")
    assert [each.name for each in read_phases(file)] == ["imports"]
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("content", [b"", b"[", b"\xff", b'[{"name": 1}]', b"[" * (1 << 17)])
def test_a_file_that_is_not_whole_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "phases").write_bytes(content)
    assert read_phases(tmp_path / "phases") == []
    assert read_phases(tmp_path / "none") == []


def test_a_folder_that_is_gone_stops_no_start(tmp_path: Path) -> None:
    phases = StartPhases()
    phases.report_to(tmp_path / "gone" / "worker.phases")
    phases.passed("imports")
    phases.done()


def test_no_worker_imports_before_it_is_ready_what_rewrites_schemas() -> None:
    late = "penstock_grammars.library", "penstock_grammars.schemas.served"
    code = (
        "import sys; import penstock_worker.loading.load, penstock_grammars.compiler;"
        f"print([name for name in {late!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout == "[]\n"
