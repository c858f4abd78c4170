"""Builds the CPU kernels with AddressSanitizer and UBSan and runs their tests: `make sanitize`.

With --long all of them; without it a share. On every instruction set that this processor has, or
with --sample N on those that take the N-th turn. What else is given goes to pytest. Any report
fails. Before the tests a deliberate overrun has to be reported: otherwise their silence would mean
nothing. Where the sanitizers aren't installed, says so and succeeds.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from penstock_kernels.cpu import library as kernels
from tests.instruction_sets import usable_here

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parent
SOURCES = "kernels/penstock_kernels/cpu/csrc"
LIBRARY = "lib/penstock_kernels/cpu/libpenstock_cpu.so"
RUNTIMES = ("libasan.so", "libubsan.so")
EVERY = "PENSTOCK_SANITIZE_EVERY_TEST"
"""A variable that is set where none of the tests is left out."""
LEFT_OUT = (
    "(portable or avx512vnni or amx) and (any_company or chunk_sizes or poison_stays or "
    "4097_rows or long_contexts or several_splits)"
)
"""Plain C++ is slowest under the sanitizers, avx512vnni is avx512 but for how it multiplies and
stores bfloat16, and amx is avx512vnni but for what AMX multiplies; those that stay walk through the
same lines. --long has them too."""
TURNS = (
    ("portable", "avx512", "neon", "neoni8mm"),
    ("avx2", "avxvnni", "avx512vnni", "amx"),
)
"""Instruction sets that are built and tested together, with --sample. In the second turn all but
amx have the bits of avx2, with which they are compared. Each is a fifth of a build of minutes."""
OVERRUN = """
import numpy as np
from penstock_kernels.cpu.matrix import product
from penstock_kernels.cpu.memory import Scratch
from tests.kernels.cpu.sanitized_memory import watched
from tests.kernels.cpu.sources import random_source

class TooSmall(Scratch):
    def at_least(self, size):
        self._memory = watched(size - 64)
        return self._memory.ctypes.data

product(np.ones((3, 64), np.float32), random_source("F32", 5, 64).packed(), scratch=TooSmall())
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kernels.cpu.sanitize", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--long", action="store_true", help="none of the tests is left out")
    parser.add_argument("--sample", type=int, metavar="N", help="the N-th turn's instruction sets")
    chosen, others = parser.parse_known_args()
    if chosen.long:
        os.environ[EVERY] = "1"
    reason = obstacle()
    if reason:
        print(f"sanitize: skipped: {reason}")
        return 0
    with tempfile.TemporaryDirectory(prefix="sanitize-") as name:
        folder = Path(name)
        begun = time.monotonic()
        names = instruction_sets(chosen.sample)
        library = built(names)
        print(
            f"sanitize: {', '.join(names)}; built, or found, in {time.monotonic() - begun:.0f} s",
            flush=True,
        )
        if run(folder / "overrun", library, ["-c", OVERRUN]) == 0 or not reports(folder):
            print("sanitize: a deliberate overrun went unnoticed")
            return 1
        tests = ["-m", "pytest", *arguments(others, long=chosen.long)]
        status = run(folder / "tests", library, tests)
        found = reports(folder, "tests")
        for report in found:
            print(report.read_text(errors="replace"))
        print(f"sanitize: {len(found)} reports, {time.monotonic() - begun:.0f} s in all")
        return 1 if status or found else 0


def instruction_sets(sample: int | None) -> list[str]:
    """Instruction sets to build, of this processor's: of one turn, or all (None). The library as it
    is installed tells which these are."""
    try:
        usable = usable_here()
    except ImportError:
        return list(kernels.INSTRUCTION_SETS)
    if sample is None:
        return usable
    turns = [[name for name in usable if name in turn] for turn in TURNS]
    turns = [turn for turn in turns if turn]
    return turns[sample % len(turns)]


def arguments(given: list[str], *, long: bool) -> list[str]:
    """pytest's. --long is a variable to this folder's conftest, which is alone here."""
    options = ["-q", "-p", "no:cacheprovider", f"--confcutdir={FOLDER}"]
    options += ["--timeout=900"]  # Others come first: they may take long by the clock.
    options += [f"--ignore={FOLDER / 'test_arm.py'}"]  # An emulator's kernels aren't these.
    if not long:
        options.append(f"-knot ({LEFT_OUT})")
    return [*options, str(FOLDER), *given]


def obstacle() -> str | None:
    """What is missing, with the package that has it."""
    if shutil.which("g++") is None:
        return "no g++ (Debian package g++)"
    for name in RUNTIMES:
        if runtime(name) is None:
            return f"g++ has no {name} (Debian package libgcc-dev of the compiler's version)"
    return None


def runtime(name: str) -> Path | None:
    found = subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    path = Path(found.stdout.strip())
    return path if path.is_absolute() and path.exists() else None


def built(names: list[str]) -> Path:
    """The library with these instruction sets, kept under build/ for as long as its sources and
    compiler stay the same: all of them take a core for minutes."""
    kept = ROOT / "build/sanitized" / "-".join(names)
    folder = kept / key()
    if not folder.exists():
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        begun = Path(tempfile.mkdtemp(dir=kept))
        build(begun, names)
        begun.rename(folder)
    return folder / LIBRARY


def key() -> str:
    """A key of all that the library is made from."""
    version = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(version)
    for file in (ROOT / "setup.py", *sorted((ROOT / SOURCES).iterdir())):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:32]


def build(folder: Path, names: list[str]) -> None:
    """Below `folder`. Exits with what the compiler says where it fails."""
    directories = ["--build-lib", str(folder / "lib"), "--build-temp", str(folder / "temp")]
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", *directories],
        cwd=ROOT,
        env=os.environ
        | {
            "PENSTOCK_SANITIZE": "address,undefined",
            "PENSTOCK_INSTRUCTION_SETS": ",".join(names),
            "CXX": "g++",
        },
        capture_output=True,
        text=True,
    )
    if done.returncode or not (folder / LIBRARY).exists():
        sys.exit(f"sanitize: the build failed:\n{done.stdout}{done.stderr}")


def run(log: Path, library: Path, arguments: list[str]) -> int:
    """The exit status. Reports are written to `log`.PID: a test's capture would swallow them."""
    environment = os.environ | {
        "LD_PRELOAD": str(runtime("libasan.so")),
        # Python's own allocations at exit are none of ours.
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={log}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:log_path={log}",
        "PENSTOCK_CPU_LIBRARY": str(library),
        "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment).returncode


def reports(folder: Path, of: str = "overrun") -> list[Path]:
    return sorted(folder.glob(f"{of}.*"))


if __name__ == "__main__":
    sys.exit(main())
