"""Which instruction sets setup.py builds in place, the best of them, and that others compile."""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from setuptools import Distribution

from penstock_kernels.cpu import library
from penstock_kernels.cpu.sources import digest
from tests.instruction_sets import chosen, usable_here

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


def test_the_best_one_is_the_library_s_own_choice(tmp_path: Path) -> None:
    usable = BUILD["of_this_processor"]("g++", X86)
    assert BUILD["best_here"]("g++", usable, tmp_path) == chosen()


@pytest.mark.parametrize("name", ["portable", "avx2"])
def test_the_best_one_is_among_those_that_can_be_compiled(tmp_path: Path, name: str) -> None:
    if name not in usable_here():
        pytest.skip(f"this processor has no {name}")
    files = dict.fromkeys(["isa_portable.cpp", f"isa_{name}.cpp"])
    assert BUILD["best_here"]("g++", files, tmp_path) == name


def test_a_compiler_whose_programs_don_t_run_here_chooses_nothing(tmp_path: Path) -> None:
    program = tmp_path / "g++"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    assert BUILD["best_here"](str(program), X86, tmp_path) == ""


def test_an_instruction_set_that_there_is_not_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_INSTRUCTION_SETS", "avx2,avx512f")
    build = BUILD["BuildKernels"](Distribution())
    with pytest.raises(ValueError, match="has avx512f; allowed are best, none, and of amx, avx2"):
        build._wanted(X86, tmp_path)


def test_a_build_for_another_processor_says_so(tmp_path: Path) -> None:
    """As a disk that moved: nothing that the processor has is in the library."""
    source, made = tmp_path / "library.cpp", tmp_path / "library.so"
    functions = "".join(f'extern "C" void {name}() {{}}\n' for name in library._SIGNATURES)
    source.write_text(
        functions.replace(
            "void pk_instruction_set() {", 'const char* pk_instruction_set() { return "";'
        )
    )
    source.write_text(
        source.read_text().replace(
            "void pk_sources() {",
            f'const char* pk_sources() {{ return "{digest(library.SOURCES)}";',
        )
    )
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    done = subprocess.run(
        [sys.executable, "-c", "from penstock_kernels.cpu import library; library.load()"],
        env={**os.environ, library.OTHER_PATH: str(made)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "built for another processor than this one" in done.stderr


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
