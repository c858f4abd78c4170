"""The library is the one of the sources beside it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_kernels.cpu import library
from penstock_kernels.cpu.sources import digest
from tests.instruction_sets import chosen, instruction_set


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sources, taken for the library's."""
    copy = tmp_path / "csrc"
    shutil.copytree(library.SOURCES, copy)
    monkeypatch.setattr(library, "SOURCES", copy)
    return copy


def test_of_the_same_sources(others: Path) -> None:
    assert library.load.__wrapped__() is not None


def test_of_other_sources(others: Path) -> None:
    with (others / "types.h").open("a") as file:
        file.write("// Another field.\n")
    with pytest.raises(ImportError, match=r"built of other sources .* install Penstock again"):
        library.load.__wrapped__()


def test_an_installed_wheel_has_no_sources(others: Path) -> None:
    shutil.rmtree(others)
    assert library.load.__wrapped__() is not None


def test_names_and_contents_count(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("one")
    (tmp_path / "notes.txt").write_text("nothing")
    first = digest(tmp_path)
    (tmp_path / "notes.txt").write_text("something")
    assert digest(tmp_path) == first
    (tmp_path / "a.h").rename(tmp_path / "b.h")
    second = digest(tmp_path)
    (tmp_path / "b.h").write_text("two")
    assert len({first, second, digest(tmp_path)}) == 3


def test_it_shares_the_openmp_library_that_torch_brings() -> None:
    """Whatever is imported first: two of them would each have threads of their own, and a machine
    may have no other than torch's."""
    ask = """
from penstock_kernels.cpu import library
library.load()
import torch
print(torch.__file__)
print({line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line})"""
    found = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=60
    )
    torch_at, mapped = found.stdout.splitlines()
    theirs = list((Path(torch_at).parent / "lib").glob("libgomp.so*"))
    if not theirs:
        pytest.skip("this build of torch brings none")
    assert mapped == str({str(path.resolve()) for path in theirs})


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.read_text() if cpuinfo.exists() else ""


def test_units_slower_than_those_for_floats_are_not_the_default() -> None:
    text = processor()
    if "avx512_bf16" not in text:
        pytest.skip("this processor has no units for bfloat16")
    with instruction_set("avx512"):  # or the test is skipped
        pass
    assert (chosen() == "avx512") == ("GenuineIntel" not in text)


SMALL_STACK = """
import ctypes

class Stack(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

memory = ctypes.create_string_buffer(4096)
stack = Stack(ctypes.addressof(memory), 0, len(memory))
if ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None):
    raise OSError("no stack for signals")
"""
"""Afterwards the system lets the process have no registers that such a stack has no room for."""


def test_amx_is_taken_where_the_system_lets_the_process_have_it() -> None:
    if "amx_int8" not in processor():
        pytest.skip("this processor has no AMX")
    with instruction_set("amx"):  # or the test is skipped
        pass
    assert chosen() == "amx"
    assert chosen(SMALL_STACK) == "avx512vnni"
