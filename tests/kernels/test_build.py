"""Which instruction sets setup.py builds in place, and that those which it leaves out compile."""

from __future__ import annotations

import platform
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.instruction_sets import usable_here

ROOT = Path(__file__).parents[2]
BUILD = runpy.run_path(str(ROOT / "setup.py"))
X86: dict[str, list[str]] = {**BUILD["PORTABLE"], **BUILD["X86"]}
WIDE = "wide_floats.cpp"
"""No instruction set of its own: it is part of every library for x86."""
AVX2 = {"isa_portable.cpp", "isa_avx2.cpp"}
AVX512 = {"isa_avx512vnni.cpp", WIDE}

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or platform.machine() not in ("x86_64", "amd64"),
    reason="a g++ for x86 is asked (Debian package g++)",
)


def compiler(folder: Path, processor: str) -> str:
    """The path of a g++ whose machine has another processor."""
    path = folder / "g++"
    path.write_text(f'#!/bin/bash\nexec g++ "${{@/-march=native/-march={processor}}}"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("processor", "wanted"),
    [
        ("x86-64", {"isa_portable.cpp"}),
        ("haswell", AVX2),
        ("alderlake", AVX2 | {"isa_avxvnni.cpp"}),
        ("skylake-avx512", AVX2 | {WIDE}),
        ("icelake-server", AVX2 | AVX512),
        ("cooperlake", AVX2 | AVX512 | {"isa_avx512.cpp"}),
        ("sapphirerapids", set(X86)),
        ("what the compiler does not know", set(X86)),
    ],
)
def test_a_processor_gets_what_it_has(tmp_path: Path, processor: str, wanted: set[str]) -> None:
    found = BUILD["of_this_processor"](compiler(tmp_path, processor), X86)
    assert set(found) == wanted


def test_this_one_gets_what_the_library_finds_in_it() -> None:
    """The library asks the processor, and the system for AMX."""
    named = {BUILD["instruction_set"](name) for name in BUILD["of_this_processor"]("g++", X86)}
    assert set(usable_here()) == named - {WIDE.removesuffix(".cpp")}


@pytest.mark.slow
@pytest.mark.parametrize("name", X86)
def test_what_it_leaves_out_compiles(name: str) -> None:
    """For the processors that others have: here only a wheel has it."""
    if name in BUILD["of_this_processor"]("g++", X86):
        pytest.skip("the library here has it")
    flags = [flag for flag in BUILD["COMMON"] if flag != "-O3"]
    macros = ["-DPK_X86=1", '-DPK_SOURCES=""']
    source = ROOT / BUILD["SOURCES"] / name
    done = subprocess.run(
        ["g++", *flags, *X86[name], *macros, "-fsyntax-only", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
