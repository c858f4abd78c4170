"""Runs the steps of `make check`, `make test` or `make ci`: all of them, whatever the first say.
At the end it tells what each took, and what was left out.

    python -m tests.steps check
    python -m tests.steps test|ci [--without-clients] [pytest's arguments]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests import out_of_time, rotation

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
MOST_PROCESSES = 4
MEMORY_EACH = 3 << 30
"""Bytes of a process of pytest: each holds torch, some models and the processes of a system."""
PER_CORE, PER_CORE_OF_UNITS = 1.5, 2
"""Processes of pytest for each core: some wait for a clock, for a system that starts, for a
browser, while others compute. More of them where no whole system is started."""

ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
}
"""Some hundred processes import the same modules, and pytest rewrites each test: compiled once, and
packages not even that, for pip has done it where they lie."""

CLIENTS = ["make", "--no-print-directory", "clients"]
INSTALLING = "PENSTOCK_INSTALLING_CLIENTS"
"""A variable that is set where the clients are installed beside the tests: theirs wait for it."""
YIELDING = ["nice", "-n", "5"]
"""Before a command that runs beside the tests: it takes the time that they leave, a third of a
process's share where they leave none."""
MOST_LATE = 10
"""Tests that ran out of time and are run again: more of them are no accident."""
NOTHING_CHOSEN = 5
"""pytest's exit status if arguments of one's own leave a step without a test."""


@dataclass(slots=True)
class Step:
    """Commands that run one after the other, up to the first that fails."""

    name: str
    commands: list[list[str]]
    passing: tuple[int, ...] = (0,)  # exit statuses
    late: Path | None = None
    """A file in which pytest says what ran out of time."""
    rerun: list[str] = field(default_factory=list)
    """A command that runs the tests that are named behind it once more."""
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
                [*YIELDING, *command] if quietly else command,
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
    parser.add_argument("which", choices=("check", "test", "ci"))
    parser.add_argument("--without-clients", action="store_true")
    chosen, pytest_arguments = parser.parse_known_args()
    begun = time.monotonic()
    types, *steps = static()
    steps += tests(chosen.which, pytest_arguments, with_clients=not chosen.without_clients)
    aside = [types]
    if chosen.which != "check" and not named(pytest_arguments):
        aside += beside_all(chosen.which, pytest_arguments, with_clients=not chosen.without_clients)
    with ExitStack() as stack:
        for step in aside:
            stack.enter_context(beside(step))
        for step in steps:
            step.run(quietly=False)
    steps += aside
    late = again(steps)
    print(f"\n== make {chosen.which}")
    for step in steps:
        print(f"  {'FAILED' if step.failed else 'ok':<8}{step.name:<14}{step.seconds:>6.0f} s")
    print(f"  {'':<8}{'in all':<14}{time.monotonic() - begun:>6.0f} s")
    for test in late:
        print(f"  ran out of time, and passed alone: {test}")
    print(f"  left out: {left_out(chosen.which, pytest_arguments)}")
    return int(any(step.failed for step in steps))


def again(steps: list[Step]) -> list[str]:
    """Runs what ran out of time once more, after everything else, one test after the other, if no
    test failed otherwise. Returns those tests, if they passed: their steps then did, too."""
    passed = []
    for step in steps:
        late = out_of_time.read(step.late) if step.failed and step.late else []
        if 0 < len(late) <= MOST_LATE:
            rerun = Step(f"{step.name}, again", [[*step.rerun, *late]])
            rerun.run(quietly=False)
            step.failed = rerun.failed
            step.seconds += rerun.seconds
            passed += [] if rerun.failed else late
    return passed


def turns_of(which: str) -> tuple[str, rotation.Turns]:
    """Returns pytest's option for what takes turns, and the turns that it stands for."""
    if which == "ci":
        number = rotation.number_of_this_landing()
        return f"--landing={number}", rotation.turns_of_landing(number)
    number = rotation.number_of_this_commit()
    return f"--sample={number}", rotation.turn_of_commit(number)


def left_out(which: str, arguments: list[str]) -> str:
    """What a run doesn't show, for its last line."""
    if named(arguments):
        return "all but what is named"
    if "--long" in arguments:
        return "nothing, but for what has a flag of its own (tests/README.md)"
    if takes_no_turns(arguments):
        return "what the arguments don't choose, and what --long adds"
    slow = "what is slow, and of the rest " if which == "check" else ""
    return slow + rotation.left_out(turns_of(which)[1])


def beside_all(which: str, arguments: list[str], *, with_clients: bool) -> list[Step]:
    """Beside all of the tests: what installs the clients, and the sanitizers, in their turns. In
    every one if the arguments say of the tests that turns don't count."""
    _, turns = turns_of(which)
    long = "--long" in arguments
    every = takes_no_turns(arguments) or long
    steps = []
    if with_clients and (every or rotation.has_clients(turns)):
        ENVIRONMENT[INSTALLING] = "1"
        steps.append(Step("installing", [CLIENTS]))
    sanitizers = rotation.sanitizers_turns(range(rotation.TURNS) if every else turns)
    sanitizing = [sys.executable, "-m", "tests.kernels.cpu.sanitize"]
    hows = [["--long"]] if long else [["--sample", str(turn)] for turn in sanitizers]
    if hows:
        steps.append(Step("sanitizers", [[*sanitizing, *how] for how in hows]))
    return steps


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


@contextmanager
def beside(step: Step) -> Iterator[None]:
    """It runs beside all that is done meanwhile, and is told of after that. Several processes of
    pytest leave a core idle now and then, while they wait for systems, clocks and a browser: that
    is enough for types, for what installs, and for the sanitizers."""
    thread = threading.Thread(target=step.run, kwargs={"quietly": True})
    thread.start()
    try:
        yield
    finally:
        thread.join()
        step.tell()


def tests(which: str, arguments: list[str], *, with_clients: bool) -> list[Step]:
    """check: what is quick and starts no system.  test, ci: the rest too, whole models among it.
    Arguments that name files or folders choose these instead."""
    if named(arguments):
        return [pytest(which, "tests", [], arguments)]
    if which == "check":
        units = ["tests", "--ignore=tests/system", "-m", "not slow"]
        return [pytest(which, "unit", units, arguments, per_core=PER_CORE_OF_UNITS)]
    # In one run: each process imports and collects once, and has one server for all that share it.
    ignored = [] if with_clients else ["--ignore=tests/system/clients"]
    return [pytest(which, "tests", ["tests", *ignored], arguments)]


def named(arguments: list[str]) -> bool:
    """Whether they name files or folders."""
    return any((ROOT / argument.split("::")[0]).exists() for argument in arguments)


def takes_no_turns(arguments: list[str]) -> bool:
    """Whether they choose among the tests by themselves."""
    own = ("--sample", "--landing", "--every-landing", "-k")
    return any(each.startswith(own) for each in arguments)


def pytest(
    which: str, name: str, chosen: list[str], arguments: list[str], *, per_core: float = PER_CORE
) -> Step:
    """A file's tests run in one process, in their order."""
    command = [sys.executable, "-m", "pytest"]
    if chosen and not takes_no_turns(arguments):
        command.append(turns_of(which)[0])
    late = ROOT / "build" / f"out-of-time-{name}.json"
    late.parent.mkdir(exist_ok=True)
    late.unlink(missing_ok=True)
    options = [*parallel(per_core), "--durations=30", "--durations-min=1", f"--out-of-time={late}"]
    passing = (0, NOTHING_CHOSEN) if arguments else (0,)
    return Step(name, [[*command, *options, *chosen, *arguments]], passing, late, command)


def parallel(per_core: float) -> list[str]:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    wanted = round(per_core * len(os.sched_getaffinity(0)))
    processes = max(1, min(MOST_PROCESSES, memory // MEMORY_EACH, wanted))
    return ["-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder"]


def _short(argument: str) -> str:
    return argument.removeprefix(f"{ROOT}/")


if __name__ == "__main__":
    sys.exit(main())
