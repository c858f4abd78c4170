"""Wheels of Penstock, made from a copy of the tree, and environments that they are installed in."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

from penstock_kernels.cpu import library

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("services", "shared", "kernels")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "Makefile")
RELEASE = "deploy/release"


def copy_of_the_tree(folder: Path) -> Path:
    """What a wheel is made of: building writes beside its sources. What was built is left out."""
    left_out = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / RELEASE, folder / RELEASE, ignore=left_out)
    return folder


def without_compiling(tree: Path) -> Path:
    """The wheel with the kernels' library that is here already: seconds instead of minutes."""
    built = tree / "built"
    (tree / "setup.cfg").write_text(f"[build]\nbuild_lib = {built}\n")
    _setup(tree, "build_py")
    place = Path(library.__file__).relative_to(ROOT / "kernels").with_name("libpenstock_cpu.so")
    shutil.copy(Path(library.__file__).with_name(place.name), built / place)
    _setup(tree, "bdist_wheel", "--skip-build")
    return only(tree / "dist")


def as_users_make_it(tree: Path) -> Path:
    """The wheel that `make wheel` makes, with this environment's Python."""
    _run(["make", f"PYTHON={sys.executable}", "wheel"], tree, os.environ.copy())
    return only(tree / "dist")


def source_distribution(tree: Path) -> Path:
    """What `pip install` compiles where there is no wheel."""
    _setup(tree, "sdist")
    (made,) = (tree / "dist").glob("*.tar.gz")
    return made


def only(folder: Path) -> Path:
    """The one wheel there."""
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """A new environment's folder of programs. Dependencies are those of this environment; Penstock
    is the wheel's alone, as what is installed here in place is found by a .pth that isn't read."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps"]
    _run([*command, "--no-index", str(wheel)], folder, os.environ.copy())
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder / "bin"


def bare_environment(programs: Path, home: Path) -> dict[str, str]:
    """The environment of a user who has no compiler, no checkout and no prepared models."""
    return {"PATH": str(programs), "HOME": str(home), "LANG": "C.UTF-8"}


def _setup(tree: Path, *words: str) -> None:
    _run([sys.executable, "setup.py", "-q", *words], tree, os.environ.copy())


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}")
