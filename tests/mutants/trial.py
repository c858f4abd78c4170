"""A copy of the tree, in which one fault at a time is put in and the tests are run.

Each run is forked from this process, which has imported what others have written, and nothing of
the tree but this package: so a run begins in a fraction of a second.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

from tests.mutants.compiler import COMPILER, KEPT
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
LIBRARY = Path("kernels/penstock_kernels/cpu/libpenstock_cpu.so")
PACKAGES = ("services", "shared", "kernels")
COMPILING = {"PENSTOCK_CXXFLAGS": "-O1", "PENSTOCK_INSTRUCTION_SETS": "avx2"}
"""Quickly, and for the one instruction set that takes least: they have the same bits."""
OWN_MODULES = (
    "deploy",
    "docs",
    "loadtest",
    "testing",
    "tests",
    "penstock",
    "penstock_bench",
    "penstock_conversion",
    "penstock_dialects",
    "penstock_engine",
    "penstock_families",
    "penstock_gateway",
    "penstock_grammars",
    "penstock_kernels",
    "penstock_planning",
    "penstock_platforms",
    "penstock_ray",
    "penstock_receipts",
    "penstock_rpc",
    "penstock_training",
    "penstock_worker",
)
OTHERS_MODULES = (
    "anyio",
    "fastapi",
    "httpx",
    "hypothesis",
    "msgspec",
    "numpy",
    "pytest",
    "pytest_asyncio",
    "pytest_timeout",
    "tokenizers",
    "torch",
    "transformers",
    "uvicorn",
    "xdist",
    "zmq",
)
PATIENCE = 900.0
"""Seconds that the tests of a fault may take, if nothing else is said. Each test has a limit of its
own, so that an endless loop is found much sooner."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
ALL_PASSED, SOME_FAILED, NONE_CHOSEN = 0, 1, 5
"""pytest's exit statuses."""


FOUND = ("at once", "in turns")


class Broken(Exception):
    """The tests didn't run."""


class OutOfTime(Exception):
    """The tests took longer than they may, and none had failed."""


class Found(NamedTuple):
    """What became of a fault."""

    verdict: str
    """`at once`: by a test that runs at every landing.  `in turns`: by one that doesn't.
    `survived`.  `out of time`: none had failed when the time was over."""
    by: str = ""
    """The test that failed first."""

    @property
    def is_found(self) -> bool:
        """Whether a test failed."""
        return self.verdict in FOUND


class Copy:
    """The tree as it stands, without what git ignores, and with the compiled kernels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        shutil.copy2(ROOT / LIBRARY, folder / LIBRARY)

    def run(
        self, tests: Sequence[str], *, every_landing: bool, seconds: float = PATIENCE
    ) -> str | None:
        """Runs tests up to the first that fails. Returns its name; None: none failed.

        every_landing: only of what takes no turns. Raises Broken, and OutOfTime where none has
        failed after so many seconds."""
        options = [
            "-x",
            "-q",
            "--tb=no",
            "-p",
            "no:cacheprovider",
            "--no-header",
            "-W",
            "ignore",
            "--no-shrinking",
        ]
        if every_landing:
            options.append("--every-landing")
        printed = self.folder / "printed.txt"
        forked = multiprocessing.get_context("fork").Process(
            target=_test, args=(self.folder, self._environment(), [*options, *tests], printed)
        )
        forked.start()
        try:
            forked.join(seconds)
            in_time = forked.exitcode is not None
        finally:
            if forked.is_alive():
                _kill(forked.pid)
                forked.join()
        if not in_time or forked.exitcode is None:
            raise OutOfTime(f"{' '.join(tests)}: no end in {seconds:.0f} s")
        if forked.exitcode < 0:
            return f"{tests[0]} (ended by signal {-forked.exitcode})"
        if forked.exitcode in (ALL_PASSED, NONE_CHOSEN):
            return None
        said = printed.read_text(encoding="utf-8", errors="replace")
        failed = FAILED.search(said)
        if forked.exitcode != SOME_FAILED or failed is None:
            raise Broken(f"{' '.join(tests)}\n{said[-3000:]}")
        return failed[1]

    def found(self, mutant: Mutant, *, folders: bool, seconds: float = PATIENCE) -> Found:
        """Puts the fault in and runs the tests that must fail; then, if none did and the argument
        says so, all of their folders. All of it takes so many seconds at most."""
        end = time.monotonic() + seconds
        with self._with(mutant):
            for tests in (mutant.tests, mutant.folders) if folders else (mutant.tests,):
                for verdict in FOUND:
                    left = max(end - time.monotonic(), 0)
                    try:
                        by = self.run(tests, every_landing=verdict == "at once", seconds=left)
                    except OutOfTime as over:
                        return Found("out of time", f"({over})")
                    if by is not None:
                        return Found(verdict, by)
        return Found("survived")

    @contextmanager
    def compiled(self) -> Iterator[None]:
        """Meanwhile, the kernels are those of the sources as they are now. What hasn't changed
        since they were compiled before isn't compiled again. Raises Broken."""
        library = self.folder / LIBRARY
        before = library.read_bytes()
        compiler = self.folder / "compiler"
        compiler.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.mutants.compiler "$@"\n')
        compiler.chmod(0o755)
        kept = self.folder / "objects"
        kept.mkdir(exist_ok=True)
        own = {"CXX": str(compiler), KEPT: str(kept), COMPILER: os.environ.get("CXX", "g++")}
        try:
            done = subprocess.run(
                [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
                cwd=self.folder, env=self._environment() | COMPILING | own, capture_output=True,
                text=True, check=False,
            )  # fmt: skip
            if done.returncode or "not built" in done.stderr:
                raise Broken(done.stderr[-3000:])
            yield
        finally:
            library.write_bytes(before)

    @contextmanager
    def _with(self, mutant: Mutant) -> Iterator[None]:
        path = self.folder / mutant.file
        source = path.read_text(encoding="utf-8")
        _write(path, mutant.applied(source))
        try:
            with self.compiled() if mutant.built else nullcontext():
                yield
        finally:
            _write(path, source)

    def _environment(self) -> dict[str, str]:
        """Imports come from the copy."""
        paths = [str(self.folder / name) for name in PACKAGES]
        hidden = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTEST_ADDOPTS")
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        return {**kept, "PYTHONPATH": os.pathsep.join(paths)}


def _test(folder: Path, environment: dict[str, str], options: list[str], printed: Path) -> None:
    """Runs pytest on the copy, in a process of its own, and ends with its exit status."""
    os.setsid()  # What it starts can be ended with it.
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    out = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    for name in [name for name in sys.modules if name.partition(".")[0] in OWN_MODULES]:
        del sys.modules[name]
    own = [str(ROOT), *(str(ROOT / name) for name in PACKAGES)]
    sys.path[:] = [
        str(folder),
        *(str(folder / name) for name in PACKAGES),
        *(path for path in sys.path if path and path not in own),
    ]
    importlib.invalidate_caches()
    pytest = importlib.import_module("pytest")
    sys.exit(int(pytest.main(options)))


def _kill(leader: int | None) -> None:
    """It, and what it has started."""
    if leader is None:
        return
    with suppress(ProcessLookupError):
        os.kill(leader, signal.SIGKILL)
    with suppress(ProcessLookupError):  # None where it hadn't come to make a group yet.
        os.killpg(leader, signal.SIGKILL)


def preload() -> None:
    """Imports what most tests import of others."""
    for name in OTHERS_MODULES:
        importlib.import_module(name)


def _write(path: Path, text: str) -> None:
    """What was compiled of it goes: a change of the same length within a second leaves no trace
    that Python looks for."""
    path.write_text(text, encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()
