"""`deploy/install.sh`, with interpreters that write down what they are asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
READ = (
    "deploy/install.sh",
    "deploy/model_packages.py",
    "Makefile",
    "pyproject.toml",
    "setup.py",
    "constraints.txt",
)
USED = ("bash", "cat", "cut", "date", "dirname", "env", "find", "grep", "mkdir", "rm", "sed", "sh")
ALSO_USED = ("sha256sum", "sleep", "sort", "tail", "uname", "xargs", "chmod", "cp")

# An interpreter: says whether it fits, makes an environment with itself in it, and notes the rest.
INTERPRETER = """#!/bin/sh
case "$1 $2" in
  "-c "*purelib*) echo "$PWD/.venv" ;;
  "-c "*) exit {unfit} ;;
  "--version "*) echo "Python {version}" ;;
  "-m venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  "-m pip")
    echo "sets=$PENSTOCK_INSTRUCTION_SETS $*" >>asked
    case "$*" in *install*) [ ! -e broken ] || {{ echo "no room"; exit 1; }} ;; esac ;;
  "deploy/model_packages.py "*) echo "$*" >>asked ;;
  "setup.py "*)
    echo "$PENSTOCK_INSTRUCTION_SETS: $*" >>compiled
    [ ! -e memory ] || echo "g++: fatal error: Killed signal terminated program cc1plus" ;;
esac
"""


class Clone:
    """Just what the script reads, and a PATH with nothing but what it uses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a clone"
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in (*USED, *ALSO_USED):
            (self.bin / name).symlink_to(shutil.which(name) or "")
        (self.folder / "deploy").mkdir(parents=True)
        (self.folder / "kernels").mkdir()
        for name in READ:
            shutil.copy(ROOT / name, self.folder / name)

    def add(self, name: str, *, version: str = "3.13.1", fits: bool = True) -> None:
        program = self.bin / name
        program.write_text(INTERPRETER.format(version=version, unfit=int(not fits)))
        program.chmod(0o755)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        # python3 of the machine's own must not be found, nor a compiler of CXX.
        environment = {"PATH": str(self.bin), "MODEL_PACKAGES": "a-model==1", **variables}
        command = [str(self.folder / "deploy/install.sh"), *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    def asked(self) -> list[str]:
        """What pip was asked for since the last call."""
        file = self.folder / "asked"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [line for line in lines if " install " in line or "model_packages" in line]

    def compiled(self) -> list[str]:
        """How setup.py was called, each with the instruction sets it was asked for."""
        return (self.folder / "compiled").read_text().splitlines()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    clone = Clone(tmp_path)
    clone.add("python3.13")
    return clone


def test_nothing_is_installed_twice(clone: Clone) -> None:
    first = clone.run("serve")
    assert first.returncode == 0, first.stderr
    torch, package, models = clone.asked()
    assert "torch==" in torch
    assert package.endswith("-e .[all]")
    assert models == f"deploy/model_packages.py {clone.folder}/.venv a-model==1"
    assert clone.run("serve").stdout == ""
    assert clone.asked() == []
    # Tests want more than a server, and a server is content with what tests have.
    assert clone.run("dev").returncode == 0
    assert clone.asked()[1].endswith("-e .[all,dev]")
    assert clone.run("serve").stdout == ""


def test_an_interrupted_installation_is_taken_up_again(clone: Clone) -> None:
    (clone.folder / "broken").touch()
    failed = clone.run("serve")
    assert failed.returncode == 1
    assert "no room" in failed.stderr
    assert "build/install.log" in failed.stderr
    assert "make serve TORCH_INDEX=" in failed.stderr
    assert "https://pypi.org/simple" in failed.stderr
    (clone.folder / "broken").unlink()
    clone.asked()
    assert clone.run("serve").returncode == 0
    assert len(clone.asked()) == 3


def test_without_a_driver_torch_comes_without_cuda(clone: Clone) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has an NVIDIA driver")
    clone.run("serve")
    assert f"--index-url {CPU_INDEX} " in clone.asked()[0]


def test_with_a_driver_torch_comes_from_where_pip_looks(clone: Clone) -> None:
    clone.add("nvidia-smi")
    clone.run("serve")
    assert "--index-url" not in clone.asked()[0]


def test_an_index_that_was_named_is_kept(clone: Clone) -> None:
    clone.run("serve", TORCH_INDEX="https://example.org/simple")
    assert "--index-url https://example.org/simple " in clone.asked()[0]
    assert clone.run("serve").stdout == ""
    clone.run("dev")
    assert "--index-url https://example.org/simple " in clone.asked()[0]


def test_a_compiler_that_comes_later_builds_the_kernels(clone: Clone) -> None:
    assert "There is no C++ compiler" in clone.run("serve").stdout
    clone.asked()
    clone.add("g++")
    again = clone.run("serve")
    assert "The CPU kernels, compiled meanwhile" in again.stdout
    # This one makes nothing.
    assert "The kernels could not be compiled" in again.stdout
    compiler, torch, _, _ = clone.asked()
    assert "install setuptools>=" in compiler
    assert "torch==" in torch


def test_a_server_s_kernels_are_of_one_instruction_set_and_a_developer_s_of_all(
    clone: Clone,
) -> None:
    clone.add("g++")
    clone.run("serve")
    clone.run("dev")
    clone.run("serve", PENSTOCK_INSTRUCTION_SETS="avx2,portable")
    build = "setup.py -q build_ext --inplace"
    assert clone.compiled() == [f"best: {build}", f": {build}", f"avx2,portable: {build}"]


def test_kernels_that_are_not_wanted_are_left_as_they_are(clone: Clone) -> None:
    clone.add("g++")
    library = clone.folder / "kernels/penstock_kernels/cpu/libpenstock_cpu.so"
    library.parent.mkdir(parents=True)
    library.write_text("an earlier one")
    clone.run("serve", PENSTOCK_INSTRUCTION_SETS="none")
    assert library.exists()
    # One that could not be compiled must not be taken for what the sources are now.
    said = clone.run("serve")
    assert not library.exists()
    assert "The kernels could not be compiled" in said.stdout


def test_a_compiler_that_was_killed_is_tried_again(clone: Clone) -> None:
    clone.add("g++")
    (clone.folder / "memory").touch()
    assert clone.run("serve").returncode == 0
    clone.asked()
    (clone.folder / "memory").unlink()
    clone.run("serve")
    assert len(clone.compiled()) == 2
    assert clone.run("serve").stdout == ""


@pytest.mark.parametrize(("mode", "flag"), [("serve", "--no-compile"), ("dev", "--compile")])
def test_a_server_gets_bytecode_of_what_it_imports_alone(
    clone: Clone, mode: str, flag: str
) -> None:
    said = clone.run(mode).stdout
    torch, package, _ = clone.asked()
    assert f"install {flag} " in torch
    assert f"install {flag} " in package
    assert ("What a server imports, as bytecode" in said) is (mode == "serve")
    assert ("The sources' bytecode" in said) is (mode == "dev")


def test_pip_leaves_the_kernels_that_are_compiled_as_they_are(clone: Clone) -> None:
    clone.add("g++")
    clone.run("serve")
    assert "sets=none" in [
        line.split(" ")[0] for line in clone.asked() if line.endswith("-e .[all]")
    ]


def test_another_interpreter_makes_the_environment_anew(clone: Clone) -> None:
    clone.run("serve")
    clone.add("python3.14", version="3.14.0")
    assert "3.14.0" in clone.run("serve", PYTHON="python3.14").stdout
    assert clone.run("serve").stdout == ""


def test_no_interpreter_that_fits_is_told(clone: Clone) -> None:
    clone.add("python3.13", fits=False)
    clone.add("python3.12", fits=False)
    said = clone.run("serve")
    assert said.returncode == 1
    assert "needs Python 3.11 to 3.14" in said.stderr
    assert "apt-get install python3-venv" in said.stderr
    assert "another" in clone.run("serve", PYTHON="another").stderr


def test_uv_is_asked_where_no_interpreter_fits(clone: Clone) -> None:
    clone.add("python3.13", fits=False)
    clone.add("hidden", version="3.12.9")
    (clone.bin / "hidden").rename(clone.folder / "hidden")
    uv = clone.bin / "uv"
    uv.write_text(f'#!/bin/sh\necho "{clone.folder}/hidden"\n')
    uv.chmod(0o755)
    assert "3.12.9" in clone.run("serve").stdout


def test_the_range_of_versions_is_the_package_s(clone: Clone) -> None:
    script = (ROOT / "deploy/install.sh").read_text()
    assert 'requires-python = ">=3.11,<3.15"' in (ROOT / "pyproject.toml").read_text()
    assert "(3, 11) <= sys.version_info[:2] <= (3, 14)" in script
    assert os.access(ROOT / "deploy/install.sh", os.X_OK)
