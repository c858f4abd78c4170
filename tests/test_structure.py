"""The tree's own rules: no circular import, one home for each class, few files in a root folder,
and packages beside the core, which names them in few places."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("shared", "services", "kernels")
SERVICES = ("penstock_gateway", "penstock_engine", "penstock_worker")
MOST_IN_ROOT = 6
CORE = ("penstock", "penstock_kernels", *SERVICES)
MEASURING = ("loadtest", "testing")
"""Packages that aren't installed, of which a contract says that they import no tests."""
NAMES_OTHERS = {
    "penstock.cli.commands",
    "penstock.cli.processes",
    "penstock.config.bundled",
}
"""Modules of the core that name packages beside it."""


@cache
def modules() -> dict[str, Path]:
    """Every product module's file by its dotted name."""
    found = {}
    for source in SOURCES:
        for file in (ROOT / source).rglob("*.py"):
            parts = file.relative_to(ROOT / source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names that are imported anywhere: in functions and for type checking, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules() else node.module


def imports() -> dict[str, set[str]]:
    graph = {}
    for name, file in modules().items():
        tree = ast.parse(file.read_text())
        wanted = {other for other in imported(tree) if other in modules()}
        packages = {package for other in wanted for package in packages_of(other)}
        graph[name] = wanted | {each for each in packages if not name.startswith(each)} - {name}
        graph[name].discard(name)
    return graph


def packages_of(module: str) -> Iterator[str]:
    """Packages whose `__init__` runs before the module does."""
    parts = module.split(".")
    yield from (".".join(parts[:depth]) for depth in range(1, len(parts)))


def test_no_import_goes_round_in_a_circle() -> None:
    graph = imports()
    assert sum(map(len, graph.values())) > len(graph), "imports were found"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_a_public_class_has_one_home() -> None:
    homes = defaultdict(set)
    for name, file in modules().items():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(name)
    twice = {name: sorted(where) for name, where in homes.items() if len(where) > 1}
    assert not twice


@pytest.mark.parametrize("service", SERVICES)
def test_a_services_root_holds_few_modules(service: str) -> None:
    files = sorted((ROOT / "services" / service).glob("*.py"))
    loose = [file.name for file in files if file.name != "__init__.py"]
    assert "process.py" in loose
    assert len(loose) <= MOST_IN_ROOT, loose


def packages_beside_the_core() -> set[str]:
    return {name.partition(".")[0] for name in modules()} - set(CORE)


def test_a_contract_keeps_every_other_package_out_of_the_core() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert set(settings["root_packages"]) == {*CORE, *packages_beside_the_core(), *MEASURING}
    (contract,) = (each for each in settings["contracts"] if each["id"] == "core-alone")
    assert set(contract["source_modules"]) == set(CORE)
    assert set(contract["forbidden_modules"]) == packages_beside_the_core()


def test_the_core_names_other_packages_in_few_places() -> None:
    """As text, too, which no contract sees."""
    others = re.compile(rf"\b({'|'.join(packages_beside_the_core())})\.\w")
    naming = {
        name
        for name, file in modules().items()
        if name.partition(".")[0] in CORE and others.search(file.read_text())
    }
    assert naming == NAMES_OTHERS


def test_other_packages_have_their_tests_in_a_folder_of_their_own() -> None:
    for package in packages_beside_the_core():
        folder = ROOT / "tests" / package.removeprefix("penstock_")
        assert list(folder.rglob("test_*.py")), folder


def test_every_package_says_that_it_has_types() -> None:
    """Whoever imports one checks against its annotations."""
    roots = ("services", "shared", "kernels")
    packages = [path.parent for root in roots for path in (ROOT / root).glob("*/__init__.py")]
    assert len(packages) > 8
    assert [path.name for path in packages if not (path / "py.typed").exists()] == []
