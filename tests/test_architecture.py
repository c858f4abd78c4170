"""Rules of the architecture that hold for every file, present and to come."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
SOURCE_ROOTS = ("services", "shared", "kernels", "loadtest", "testing")
SOURCES = sorted(path for root in SOURCE_ROOTS for path in (ROOT / root).rglob("*.py"))
HEAVY = ("torch", "transformers", "triton")


def loaded_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after `statement`."""
    code = f"{statement}\nimport sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import penstock_gateway.process",
        "import penstock_engine.process",
        "from penstock import LLM, AsyncLLM, SamplingParams",
        "import penstock.prepare",
        "import penstock.supervisor.system",
        "import penstock.cli.main",
        "import penstock_bench.command, penstock_bench.load.run, penstock_bench.offline",
        "import penstock_conversion.commands.merge, penstock_conversion.commands.quantize",
        "import penstock_grammars.compiler, penstock_grammars.fork_server",
        "import penstock_planning.commands.plan, penstock_planning.plan.command",
        "import penstock_ray.driver",
        "import penstock_receipts.command, penstock_receipts.desk",
        "import penstock_rpc.process",
    ],
)
def test_what_must_be_light_loads_nothing_heavy(statement: str) -> None:
    """Also by way of other libraries, which import-linter can't see into."""
    assert not loaded_after(statement) & set(HEAVY)


def test_a_worker_on_a_cpu_loads_nothing_heavy() -> None:
    """What it begins with and what the CPU kernels compute with: `import torch` gives a module that
    nobody has looked into."""
    statement = """
from penstock_worker.process import preload
preload()
import penstock_worker.forward.cpu.backend
from penstock_worker.machine.torch_import import torch_runs
assert not torch_runs()
"""
    assert loaded_after(statement) & set(HEAVY) == {"torch"}


def test_a_worker_loads_its_models_family_alone() -> None:
    statement = """
import penstock_worker.process, penstock_worker.weights.opening, penstock_engine.process, sys
assert "penstock.families.served" not in sys.modules
"""
    loaded_after(statement)


def test_importing_penstock_costs_next_to_nothing() -> None:
    assert not loaded_after("import penstock") & {"msgspec", "zmq", "asyncio", "tokenizers"}


def test_the_engine_core_loads_no_tokeniser_and_no_web_server() -> None:
    loaded = loaded_after("import penstock_engine.process")
    assert not loaded & {"tokenizers", "jinja2", "uvicorn", "fastapi", "huggingface_hub", "numpy"}


def test_what_gateways_are_forks_of_has_one_thread() -> None:
    """A process with several isn't forked; numpy's linear algebra starts some when imported."""
    loaded = loaded_after(
        "from penstock.cli.processes import _import_fork_server as load; load(); "
        "from penstock.supervisor.ahead import is_single_threaded; assert is_single_threaded()"
    )
    assert "penstock_gateway" in loaded
    assert "numpy" not in loaded


@pytest.mark.parametrize("process", ["penstock_engine", "penstock_worker"])
def test_metrics_cost_nothing_where_nobody_asks_for_them(process: str) -> None:
    assert not loaded_after(f"import {process}.process") & {"prometheus_client", "http"}


def test_a_source_file_keeps_the_rules() -> None:
    assert {path: found for path in SOURCES if (found := broken_rules(path))} == {}


def test_who_imports_a_module_of_torch_asks_torch_for_something_first() -> None:
    """A worker's torch is run by whoever wants something of it, in any thread. Who begins with one
    of its modules is refused while another thread runs it (`machine/torch_import.py`)."""
    product = [path for path in SOURCES if not is_measuring(path)]
    assert [path for path in product if begins_with_a_module_of_torch(path)] == []


def begins_with_a_module_of_torch(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    if "torch." not in text:
        return False
    tree, asked = ast.parse(text), False
    for node in (*tree.body, *ast.walk(tree)):  # What stands at the top of the file comes first.
        if isinstance(node, ast.ImportFrom) and node.module == "torch" and node in tree.body:
            asked = True
        if not asked and any(name.startswith("torch.") for name in modules_of(node)):
            return True
    return False


def modules_of(node: ast.AST) -> list[str]:
    """Those that it imports, in full."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []


def is_measuring(path: Path) -> bool:
    """Part of tests and measurements."""
    return path.relative_to(ROOT).parts[0] in ("loadtest", "testing")


UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
SUSPICIOUS = re.compile(rf"\b(assert|load|{'|'.join(UNPICKLERS)})\b")
"""Words without which no rule is broken: most files have none, and to parse all takes a while."""


def broken_rules(path: Path) -> list[str]:
    """Each with its line."""
    found = []
    if path.stem in ("utils", "util", "helpers", "misc", "common_utils"):
        found.append("says nothing with its name")
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if SUSPICIOUS.search(text) else ():
        line = getattr(node, "lineno", 0)
        if imports(node) & UNPICKLERS:
            found.append(f"{line}: unpickles")
        if is_attribute(node, "torch", "load"):
            found.append(f"{line}: torch.load unpickles")
        if isinstance(node, ast.Assert) and not is_measuring(path):
            found.append(f"{line}: assert is no validation: it can be turned off")
    return found


def imports(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").split(".")[0]}
    return set()


def is_attribute(node: ast.AST, owner: str, name: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == owner
    )


def test_every_module_with_code_says_what_it_is() -> None:
    assert [path for path in SOURCES if is_silent(path)] == []


def is_silent(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    if text.startswith('"""'):
        return False
    tree = ast.parse(text)
    return bool(tree.body) and not ast.get_docstring(tree)


def needs_of(extra: str) -> list[str]:
    """What the distribution itself needs with that extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"].get(extra, [])]


@pytest.mark.parametrize("extra", ["", "gateway", "engine"])
def test_an_extra_without_a_worker_brings_nothing_heavy(extra: str) -> None:
    """The closure of what would be installed, by the metadata of what is installed."""
    closure, pending = set(), [("", frozenset({extra}))]
    while pending:
        name, extras = pending.pop()
        lines = importlib.metadata.requires(name) if name else needs_of(extra)
        for line in lines or []:
            requirement = Requirement(line)
            wanted = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": one}) for one in extras | {""}
            )
            key = (requirement.name, frozenset(requirement.extras))
            if wanted and key not in closure:
                closure.add(key)
                pending.append(key)
    names = {name.lower() for name, _ in closure}
    assert "msgspec" in names
    assert ("uvicorn" in names) == (extra == "gateway")
    assert not names & set(HEAVY)


def test_pinned_and_bounded_versions_agree() -> None:
    """Each dependency is bounded on both sides, and its pin lies in the constraints file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        lines += extra
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            assert version, line
            assert "+" not in version, "a build tag would tie the pin to one index"
            pins[name.lower().replace("_", "-")] = version
    for requirement in map(Requirement, lines):
        if requirement.name == project["name"]:
            continue
        operators = {specifier.operator for specifier in requirement.specifier}
        assert {">=", "<"} <= operators, f"{requirement} is not bounded"
        assert requirement.specifier.contains(pins[requirement.name.lower().replace("_", "-")]), (
            requirement
        )
