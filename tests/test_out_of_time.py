"""What runs out of time is run again, alone; what sees something wrong is not."""

from __future__ import annotations

import queue
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests import out_of_time, steps
from tests.out_of_time import by_time

ROOT = Path(__file__).parents[1]

LATE = """
import pytest

def test_that_waits_in_vain_once(tmp_path_factory, request):
    marked = request.path.with_name("been-here")
    if not marked.exists():
        marked.touch()
        raise TimeoutError("not within 60 s")

def test_that_passes():
    pass
"""
WRONG = """
def test_that_sees_something_wrong():
    assert 1 == 2
"""
HANGING = """
import pytest, time

@pytest.mark.timeout(0.2)
def test_that_hangs():
    time.sleep(60)
"""


CONFTEST = """
from tests import out_of_time

pytest_addoption = out_of_time.add_option
pytest_configure = out_of_time.configure
"""


def step_of(folder: Path, *, processes: int, **files: str) -> steps.Step:
    """Returns the step that runs these modules, after it ran."""
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    late = folder / "late.json"
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(folder)]
    options = [f"--out-of-time={late}", *(["-n", str(processes)] if processes else [])]
    step = steps.Step("tests", [[*command, *options, str(folder)]], (0,), late, command)
    step.run(quietly=True)
    step.output.clear()
    return step


def again(step: steps.Step, monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(steps, "ROOT", folder)
    return steps.again([step])


@pytest.mark.parametrize("processes", [0, 2])
def test_what_ran_out_of_time_is_run_again(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_of(tmp_path, processes=processes, late=LATE)
    assert step.failed
    passed = again(step, monkeypatch, tmp_path)
    assert passed == ["test_late.py::test_that_waits_in_vain_once"]
    assert not step.failed


def test_what_hangs_alone_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of(tmp_path, processes=0, hanging=HANGING)
    assert out_of_time.read(tmp_path / "late.json") == ["test_hanging.py::test_that_hangs"]
    assert again(step, monkeypatch, tmp_path) == []
    assert step.failed


@pytest.mark.parametrize("processes", [0, 2])
def test_beside_a_test_that_saw_something_wrong_nothing_is_run_again(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_of(tmp_path, processes=processes, late=LATE, wrong=WRONG)
    assert again(step, monkeypatch, tmp_path) == []
    assert step.failed
    assert out_of_time.read(tmp_path / "late.json") == []


def test_what_is_no_module_is_no_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of(tmp_path, processes=0, late=LATE, broken="import no_such_module\n")
    assert again(step, monkeypatch, tmp_path) == []
    assert step.failed


def test_errors_that_say_it_took_too_long() -> None:
    late = [
        TimeoutError(),
        TimeoutError(),
        httpx.ReadTimeout(""),
        subprocess.TimeoutExpired("a", 1),
        ExceptionGroup("", [TimeoutError(), httpx.ConnectTimeout("")]),
    ]
    others = [
        AssertionError("Timeout (>"),
        queue.Empty(),
        httpx.ConnectError(""),
        ExceptionGroup("", [TimeoutError(), AssertionError()]),
    ]
    assert all(map(by_time, late))
    assert not any(map(by_time, others))


def test_waits_end_with_an_error_of_time() -> None:
    """An AssertionError would say that something is wrong."""
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("tests", "testing")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.strip().startswith("assert time.monotonic() <")
    ]
    assert found == []
