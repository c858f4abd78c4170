"""The process that the trials of grammars are forked from: loaded once, early or when it is asked
for, frozen, killed and replaced."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from penstock.protocol.common import Grammar
from penstock_grammars import trial as processes_module
from penstock_grammars.compiler import Compiler
from penstock_grammars.fork_server import NICENESS
from penstock_grammars.trial import Trial, TrialProcesses
from penstock_worker.grammar.errors import GrammarError, GrammarUnavailable
from penstock_worker.grammar.grammars import SlotGrammars
from testing.processes import freeze
from tests.said import said
from tests.worker.grammar.grammar_tools import compile_now

pytestmark = pytest.mark.timeout(300)

DATE = Grammar("regex", "[0-9]{4}-[0-9]{2}")
SLOW = Grammar("json_schema", '{"type": "integer", "multipleOf": 1000003}')
VOCABULARY, EOS = 49152, (2,)


def until(holds: Callable[[], object]) -> None:
    while not holds():  # The test's own timeout ends it.
        time.sleep(0.02)


@pytest.fixture
def processes(default_folder: Path) -> Iterator[TrialProcesses]:
    made = TrialProcesses(default_folder / "tokenizer.json", VOCABULARY, EOS)
    yield made
    made.end()


def test_the_library_is_loaded_once_for_several_trials_and_for_what_replaces_them(
    processes: TrialProcesses,
) -> None:
    trials = [Trial(processes) for _ in range(3)]
    assert len({trial.source(DATE) for trial in trials}) == 1
    server = psutil.Process(processes.pid)
    assert {child.pid for child in server.children()} == {trial.pid for trial in trials}
    assert server.num_threads() == 1  # A fork has no other thread than the one that made it.
    former = trials[0].pid
    with pytest.raises(GrammarError, match="more than 2 s"):
        trials[0].source(SLOW)
    trials[0].source(DATE)
    assert trials[0].pid != former
    assert processes.pid == server.pid
    assert len(server.children()) == 3  # The one that was ended is no zombie.


def test_trials_give_way_to_steps(processes: TrialProcesses) -> None:
    trial = Trial(processes)
    trial.source(DATE)
    assert psutil.Process(trial.pid).nice() == NICENESS


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("strike", "reason"), [(freeze, "stood still"), (kill, "died")])
def test_one_that_is_frozen_or_killed_is_replaced(
    processes: TrialProcesses,
    strike: Callable[[int], None],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = Trial(processes), Trial(processes)
    source = first.source(DATE)
    former = psutil.Process(processes.pid)
    fork = psutil.Process(first.pid)
    strike(former.pid)
    assert second.source(DATE) == source
    assert not former.is_running()
    assert reason in said(caplog)
    until(lambda: not fork.is_running())
    assert first.source(DATE) == source


def test_its_forks_go_with_it(processes: TrialProcesses) -> None:
    trial = Trial(processes)
    trial.source(DATE)
    fork = psutil.Process(trial.pid)
    processes.end()
    until(lambda: not fork.is_running())
    with pytest.raises(GrammarUnavailable):
        Trial(processes).source(DATE)


@pytest.mark.parametrize("allowed", [True, False], ids=["raised", "replaced"])
def test_one_that_loads_for_nobody_yet_is_hurried_when_somebody_waits(
    processes: TrialProcesses, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets another priority; and where that may not be raised, another process takes its
    place."""
    processes.start(NICENESS)
    early = psutil.Process(processes.pid)
    early.suspend()  # So it can't be done yet.
    assert early.nice() == NICENESS
    asked = threading.Event()
    change = processes_module.os.setpriority

    def setpriority(which: int, who: int, priority: int) -> None:
        if not allowed:
            raise PermissionError
        change(which, who, priority)
        early.resume()
        asked.set()

    monkeypatch.setattr(processes_module.os, "setpriority", setpriority)
    assert Trial(processes).source(DATE)
    if allowed:
        assert asked.is_set()
        assert processes.pid == early.pid
        assert early.nice() == psutil.Process().nice()
    else:
        assert not early.is_running()


def test_grammars_are_made_ready_for_before_one_comes(default_folder: Path) -> None:
    """The first one then needs no more than a fork."""
    others = psutil.Process().children()  # Other tests' may be ending.
    compiler = Compiler(default_folder / "tokenizer.json", VOCABULARY, EOS, number_digits=16)
    grammars = SlotGrammars(
        compiler,
        budget=1.0,
        prepare=compiler.load,
        early=compiler.start_trials,
        end=compiler.close,
    )
    grammars.warm_when_idle(0.0)
    until(lambda: compiler.ready)
    assert compile_now(grammars, 1, DATE) is None
    mine = [each for each in psutil.Process().children() if each not in others]
    living = [each for each in mine if each.status() != psutil.STATUS_ZOMBIE]
    [server] = [each for each in living if "grammars" in " ".join(each.cmdline())]
    assert len(server.children()) == 1
    grammars.close()
    assert not server.is_running()


def test_what_cannot_be_loaded_is_told_of_each_grammar_and_ends_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    compiler = Compiler(broken, VOCABULARY, EOS)
    grammars = SlotGrammars(
        compiler,
        budget=1.0,
        prepare=compiler.load,
        early=compiler.start_trials,
        end=compiler.close,
    )
    grammars.warm_when_idle(0.0)
    for number in range(6):
        reason = compile_now(grammars, number, DATE)
        assert reason is not None
        assert "structured output doesn't work with this model" in reason
    grammars.close()
