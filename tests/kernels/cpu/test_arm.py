"""ARM's kernels, built for it here and run by an emulator (emulated/machine.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_kernels.cpu import library
from tests import thinning
from tests.instruction_sets import usable_here
from tests.kernels.cpu.emulated import machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SAME_BITS = (
    "test_products or test_tiles or test_draws or largest or groups[3- or scans or "
    "(test_steps and (experts or int8)) or test_mixed or (test_entries and unlike)"
)
"""Tests of test_same_bits.py that run without --long: every kind of weights, of cache, and of
scan."""


@pytest.fixture(scope="module")
def emulated(loaded: None) -> Path:
    """The folder with what is built, for this module's tests. Compilers optimise less without
    --long; the numbers are the same."""
    reason = machine.obstacle()
    if reason:
        pytest.skip(reason)
    if "avx2" not in usable_here():
        pytest.skip("AVX2 is what ARM's numbers are compared with, and this processor has none")
    return machine.built("" if thinning.every else "-O1")


def run(emulated: Path, *arguments: str, cpu: str = "max") -> str:
    """What a Python with the emulated kernels says. Fails where it does."""
    environment = os.environ | {
        library.OTHER_PATH: str(emulated / machine.FORWARDING),
        machine.PROCESSOR: cpu,
        "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    environment.pop(library.CHOICE, None)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=machine.ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def passed_of(emulated: Path, file: str, chosen: str) -> int:
    """Runs those of a file; returns how many there were. Each of them may be an emulation of
    seconds."""
    folder = Path(__file__).parent
    options = ["-q", "-p", "no:cacheprovider", f"--confcutdir={folder}", "--timeout=300"]
    said = run(emulated, "-m", "pytest", *options, str(folder / file), f"-k{chosen}")
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None, said
    assert "skipped" not in said, said
    return int(passed[1])


def test_the_bits_of_avx2(emulated: Path) -> None:
    """The tests that compare the instruction sets of one machine show it, on both of ARM's."""
    assert passed_of(emulated, "test_same_bits.py", "" if thinning.every else SAME_BITS) > 80


def test_plain_code(emulated: Path) -> None:
    """Against a slow model, as on any machine."""
    assert passed_of(emulated, "test_product.py", "portable and test_bias") > 20


ASK = """
import ctypes
from penstock_kernels.cpu import library

name = ctypes.create_string_buffer(16)
library.load().emulated_instruction_set(name)
print(name.value.decode())
for other in ("neoni8mm", "neon", "portable"):
    try:
        library.use(other)
    except ValueError as error:
        print(error)
    else:
        print(library.instruction_set(), library.bits())
"""


@pytest.mark.parametrize(
    ("cpu", "lacks"),
    [("max", 0), ("neoverse-n1", 1), ("cortex-a72", 2)],
)
def test_the_best_that_a_processor_has(emulated: Path, cpu: str, lacks: int) -> None:
    names = ["neoni8mm", "neon", "portable"]
    bits = {"neoni8mm": "avx2 2", "neon": "avx2 2", "portable": "portable 2"}
    answers = [f"this processor or build has no {name!r}" for name in names[:lacks]]
    answers += [f"{name} {bits[name]}" for name in names[lacks:]]
    assert run(emulated, "-c", ASK, cpu=cpu).splitlines() == [names[lacks], *answers]
