"""The process that tries grammars: frozen, killed, and replaced."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.protocol.common import Grammar
from penstock.protocol.from_worker import GrammarFailed, GrammarReady
from penstock_grammars.compiler import Compiler
from penstock_grammars.library import Library
from penstock_grammars.trial import ATTEMPTS, Trial, TrialProcesses
from penstock_worker.grammar.errors import GrammarError, GrammarUnavailable
from penstock_worker.grammar.grammars import SlotGrammars
from testing.processes import freeze
from tests.said import said
from tests.worker.grammar.grammar_tools import compile_now

pytestmark = pytest.mark.timeout(300)

DATE = Grammar("regex", "[0-9]{4}-[0-9]{2}")
VOCABULARY, EOS = 49152, (2,)


@pytest.fixture
def trial(default_folder: Path) -> Iterator[Trial]:
    processes = TrialProcesses(default_folder / "tokenizer.json", VOCABULARY, EOS)
    made = Trial(processes)
    yield made
    made.end()
    processes.end()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("strike", "reason"), [(freeze, "stood still"), (kill, "died")])
def test_a_process_that_is_frozen_or_killed_costs_no_grammar(
    trial: Trial, strike: Callable[[int], None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another one compiles it, and soon."""
    source = trial.source(DATE)
    former = psutil.Process(trial.pid)
    strike(former.pid)
    assert trial.source(DATE) == source
    assert not former.is_running()
    assert reason in said(caplog)


def test_processes_that_all_die_blame_no_grammar(
    default_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen, begun = subprocess.Popen, []

    def killed(*arguments: Any, **keywords: Any) -> subprocess.Popen[bytes]:
        child = popen(*arguments, **keywords)
        child.kill()
        begun.append(child)
        return child

    compiler = Compiler(default_folder / "tokenizer.json", VOCABULARY, EOS)
    grammars = SlotGrammars(compiler, budget=1.0, end=compiler.close)
    monkeypatch.setattr(subprocess, "Popen", killed)
    answers: queue.SimpleQueue[GrammarReady | GrammarFailed] = queue.SimpleQueue()
    grammars.compile(1, DATE, answers.put)
    answer = answers.get(timeout=60)
    assert isinstance(answer, GrammarFailed)
    assert answer.unavailable
    assert "stood still or died" in answer.reason
    assert [child.returncode for child in begun] == ATTEMPTS * [-signal.SIGKILL]
    monkeypatch.undo()
    assert compile_now(grammars, 2, DATE) is None
    grammars.close()


def test_nothing_is_started_again_once_it_was_ended(trial: Trial) -> None:
    trial.source(DATE)
    process = psutil.Process(trial.pid)
    trial.end()
    with pytest.raises(GrammarUnavailable, match="stood still or died"):
        trial.source(DATE)
    assert not process.is_running()
    assert trial.pid is None


@pytest.mark.parametrize(
    "definition",
    [
        Grammar("json_schema", '{"properties": {"a": {"pattern": "^[a-f]{3}", "maxLength": 9}}}'),
        Grammar("json_object", ""),
        Grammar("regex", "[^x]{2,8}é"),
        Grammar("lark", 'start: "a" <|im_end|>'),
    ],
)
def test_a_library_of_tokens_alone_allows_what_that_of_the_tokenizer_does(
    default_folder: Path, definition: Grammar
) -> None:
    model = (default_folder / "tokenizer.json", VOCABULARY, EOS)
    whole, tried = Library(*model), Library(*model, splits_texts=False)
    assert tried.special == whole.special
    assert list(tried.pieces()) == list(whole.pieces())
    source = whole.source(definition)
    tried.probe(source)
    one, other = whole.matcher(source), tried.matcher(source)
    for _ in range(3):
        allowed = one.compute_bitmask()
        assert other.compute_bitmask() == allowed
        token = next(each for each in range(VOCABULARY) if allowed[each // 8] >> each % 8 & 1)
        assert one.consume_token(token)
        assert other.consume_token(token)
        if one.is_stopped():
            break


def test_a_library_of_tokens_alone_refuses_what_cannot_be_followed(default_folder: Path) -> None:
    library = Library(default_folder / "tokenizer.json", VOCABULARY, EOS, splits_texts=False)
    schema = '{"type": "string", "pattern": "^(a|b)*c{900}(d|e)*f{900}$", "maxLength": 90}'
    with pytest.raises(GrammarError):
        library.probe(library.source(Grammar("json_schema", schema)))
