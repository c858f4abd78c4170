"""The wheel of `make wheel`: what is in it, and that it works where there is no compiler; and the
source distribution that it is made of."""

from __future__ import annotations

import platform
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest

from tests import wheel
from tests.wheel import PACKAGES, ROOT

pytestmark = pytest.mark.timeout(900)
CODE = (".py", ".pyi", ".proto")
LIBRARY = "penstock_kernels/cpu/libpenstock_cpu.so"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = wheel.copy_of_the_tree(tmp_path_factory.mktemp("tree"))
    return wheel.without_compiling(tree)


@pytest.fixture(scope="module")
def archive(built: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(built) as archive:
        yield archive


def sources() -> set[str]:
    """Every file of the packages that is used where it is installed, by its path in a wheel."""
    return {
        str(path.relative_to(ROOT / package))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file()
        and (
            path.suffix in CODE
            or path.name == "py.typed"
            or "/web/" in str(path)
            or path.name == "sample_text.txt"
        )
        and "__pycache__" not in path.parts
    }


def metadata(archive: zipfile.ZipFile) -> Message:
    (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
    return BytesParser().parsebytes(archive.read(name))


def test_all_that_runs_is_in_it_and_nothing_of_tests(archive: zipfile.ZipFile) -> None:
    held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert sources() - held == set()
    assert held - sources() - {LIBRARY} == set()


def test_it_is_of_this_platform_and_any_python_3(built: Path) -> None:
    assert re.fullmatch(
        rf"penstock_llm-[\d.]+-py3-none-linux_{platform.machine()}\.whl", built.name
    ), built.name


def test_it_says_what_it_needs(archive: zipfile.ZipFile) -> None:
    told = metadata(archive)
    assert told["Requires-Python"] == "<3.15,>=3.11"
    assert {"gateway", "engine", "worker", "all"} <= set(told.get_all("Provides-Extra", []))
    needs = [line for line in told.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not any(re.match(r"torch|transformers|triton", line) for line in needs)
    (commands,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "penstock = penstock.cli.main:main" in archive.read(commands).decode()


def test_the_source_distribution_has_all_that_a_wheel_is_made_of(tmp_path: Path) -> None:
    """Compared with the tree: headers are no sources of an extension, and easily left out."""
    made = wheel.source_distribution(wheel.copy_of_the_tree(tmp_path))
    with tarfile.open(made) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    code = (ROOT / "kernels/penstock_kernels/cpu/csrc").iterdir()
    wanted = {str(path.relative_to(ROOT)) for path in code}
    wanted |= {
        f"{folder}/{name}"
        for name in sources()
        for folder in PACKAGES
        if (ROOT / folder / name).exists()
    }
    assert wanted | {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= held


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    ["without compiling", pytest.param("by make wheel", marks=pytest.mark.long)],
)
def test_it_answers_where_there_is_no_compiler(
    made: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With the compiled kernels: the reference would say so in the log."""
    if made == "by make wheel":
        tree = tmp_path / "tree"
        tree.mkdir()
        file = wheel.as_users_make_it(wheel.copy_of_the_tree(tree))
        kind = rf"penstock_llm-[\d.]+-py3-none-manylinux_2_(\d+)_{platform.machine()}\.whl"
        tag = re.fullmatch(kind, file.name)
        assert tag is not None, file.name
        assert int(tag[1]) <= 28, "torch's wheels are for glibc 2.28"
    else:
        file = request.getfixturevalue("built")
    programs = wheel.install(file, tmp_path / "environment")
    done = subprocess.run(
        [
            *(programs / "penstock", "run", "smollm2-135m", "What is the capital of Germany?"),
            *("--temperature", "0", "--max-model-len", "512", "--attention-backend", "cpu"),
        ],
        cwd=tmp_path,
        env=wheel.bare_environment(programs, tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "The capital of Germany is Berlin.\n", done.stderr
