"""Runs the steps of `make check` or `make test`, all of them whatever the first ones say, and tells
at the end what each took.

    python -m tests.steps check
    python -m tests.steps test [--without-clients] [pytest's arguments]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
MOST_PROCESSES = 4
MEMORY_EACH = 3 << 30
"""Of pytest: each holds torch, some models and the processes of a system. Bytes."""
PER_CORE = {"unit": 1.5, "page": 1.5, "clients": 1.5}
"""Processes of pytest for each core, else one: more where tests wait for a clock, for a system that
starts, for a browser."""

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    "PYTHONPYCACHEPREFIX": str(ROOT / "build/pycache"),
}
"""Some hundred processes import the same modules, and pytest rewrites each test: compiled once."""

NOTHING_CHOSEN = 5
"""pytest's exit status if arguments of one's own leave a step without a test."""


@dataclass(slots=True)
class Step:
    """Commands that run one after the other, up to the first that fails."""

    name: str
    commands: list[list[str]]
    passing: tuple[int, ...] = (0,)  # exit statuses
    seconds: float = 0.0
    failed: bool = False
    output: list[bytes] = field(default_factory=list)  # of a step that runs beside others

    def run(self, *, quietly: bool) -> None:
        """quietly: keeps the output until `tell`."""
        begun = time.monotonic()
        for command in self.commands:
            announced = f"\n== {self.name}: {' '.join(map(_short, command))}\n"
            if quietly:
                self.output.append(announced.encode())
            else:
                print(announced, end="", flush=True)
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=ENVIRONMENT,
                check=False,
                stdout=subprocess.PIPE if quietly else None,
                stderr=subprocess.STDOUT if quietly else None,
            )
            self.output.append(done.stdout or b"")
            if done.returncode not in self.passing:
                self.failed = True
                break
        self.seconds = time.monotonic() - begun

    def tell(self) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(b"".join(self.output))
        sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.steps", description=__doc__)
    parser.add_argument("which", choices=("check", "test"))
    parser.add_argument("--without-clients", action="store_true")
    chosen, pytest_arguments = parser.parse_known_args()
    begun = time.monotonic()
    steps = static()
    beside_each_other(steps)
    for step in tests(chosen.which, pytest_arguments, with_clients=not chosen.without_clients):
        step.run(quietly=False)
        steps.append(step)
    print(f"\n== make {chosen.which}")
    for step in steps:
        print(f"  {'FAILED' if step.failed else 'ok':<8}{step.name:<14}{step.seconds:>6.0f} s")
    print(f"  {'':<8}{'in all':<14}{time.monotonic() - begun:>6.0f} s")
    return int(any(step.failed for step in steps))


def static() -> list[Step]:
    """What reads the sources and runs nothing of them."""
    steps = [
        Step("types", [[f"{BIN}/mypy"]]),
        Step("lint", [[f"{BIN}/ruff", "check", "."], [f"{BIN}/ruff", "format", "--check", "."]]),
        Step("imports", [[f"{BIN}/lint-imports"]]),
    ]
    if (ROOT / "mkdocs.yml").exists():
        steps.append(Step("docs", [["make", "--no-print-directory", "docs"]]))
    return steps


def beside_each_other(steps: list[Step]) -> None:
    """The first, which takes about as long as the others together, beside them."""
    first, *others = steps
    thread = threading.Thread(target=first.run, kwargs={"quietly": True})
    thread.start()
    for step in others:
        step.run(quietly=True)
        step.tell()
    thread.join()
    first.tell()


def tests(which: str, arguments: list[str], *, with_clients: bool) -> list[Step]:
    """check: what is quick and starts no system.  test: the rest too, whole models among it.
    Arguments that name files or folders choose these instead."""
    if any((ROOT / argument.split("::")[0]).exists() for argument in arguments):
        return [pytest("tests", [], arguments)]
    steps = [pytest("unit", ["tests", "--ignore=tests/system", "-m", "not slow"], arguments)]
    if which == "check":
        return steps
    apart = ["--ignore=tests/system/page", "--ignore=tests/system/clients"]
    steps += [
        pytest("system", ["tests", *apart, "-m", "slow"], arguments),
        pytest("page", ["tests/system/page"], arguments),
    ]
    if with_clients:
        install = ["make", "--no-print-directory", "clients"]
        clients = pytest("clients", ["tests/system/clients"], arguments)
        clients.commands.insert(0, install)
        steps.append(clients)
    sanitizers = [sys.executable, "-m", "tests.kernels.cpu.sanitize", *parallel()]
    return [*steps, Step("sanitizers", [sanitizers])]


def pytest(name: str, chosen: list[str], arguments: list[str]) -> Step:
    """A file's tests run in one process, in their order."""
    options = [*parallel(PER_CORE.get(name, 1.0)), "--durations=15", "--durations-min=1"]
    command = [sys.executable, "-m", "pytest", *options, *chosen, *arguments]
    return Step(name, [command], passing=(0, NOTHING_CHOSEN) if arguments else (0,))


def parallel(per_core: float = 1.0) -> list[str]:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    wanted = round(per_core * len(os.sched_getaffinity(0)))
    processes = max(1, min(MOST_PROCESSES, memory // MEMORY_EACH, wanted))
    return ["-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder"]


def _short(argument: str) -> str:
    return argument.removeprefix(f"{ROOT}/")


if __name__ == "__main__":
    sys.exit(main())
