"""Processor seconds of a file are those of its tests and of the processes that they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests import processor_time

pytest_addoption = processor_time.add_option
pytest_configure = processor_time.configure
"""
BURN = "import time; [None for _ in iter(lambda: time.process_time() < 0.5, False)]"
BURNS = f"""
import subprocess, sys
import pytest

@pytest.fixture(scope="module")
def burnt():
    subprocess.run([sys.executable, "-S", "-c", {BURN!r}], check=True)

def test_waited_for(burnt):
    pass

def test_still_there():
    global kept
    code = {BURN + "; print(flush=True); time.sleep(600)"!r}
    kept = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
    kept.stdout.readline()

def test_a_fixture_is_set_up_once(burnt):
    pass

def teardown_module():
    kept.kill()
    kept.wait()
"""
SLEEPS = """
import time

def test_it():
    time.sleep(0.5)
"""


def test_each_file_and_each_shared_fixture_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_burns.py").write_text(BURNS)
    (tmp_path / "test_sleeps.py").write_text(SLEEPS)
    written = tmp_path / "written.tsv"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--processor-time", str(written), str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    lines = [line.split("\t") for line in written.read_text().splitlines()]
    found = {name: (float(took), int(times)) for _, name, took, times in lines}
    assert found["test_burns.py"][1] == 3
    assert found["test_sleeps.py"][1] == 1
    assert found["test_burns.py"][0] > 0.9
    assert found["test_sleeps.py"][0] < 0.4
    took, times = found["test_burns.py::burnt"]
    assert times == 1
    assert 0.45 < took < 0.9
    assert done.stdout.index("test_burns.py") < done.stdout.index(" in all")
