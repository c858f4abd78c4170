"""Grammars over several ranks: ready on all of them, or failed."""

from __future__ import annotations

from typing import Any

from penstock.protocol.common import Grammar
from penstock.protocol.from_worker import GrammarFailed, GrammarReady
from penstock.protocol.to_worker import Setup
from penstock.protocol.worker_resources import CompileGrammar
from tests.engine.rank_workers import RankHarness
from tests.engine.sessions.rank_sessions import ask, finishes, started


def test_a_grammar_is_ready_when_all_ranks_have_it() -> None:
    h = started(2, 2)
    h.compile_at_once = False
    (request,) = ask(h, grammar=Grammar("regex", "4"))
    for rank in (0, 3, 1, 1):
        worker = h.ranks[rank].worker
        answer = worker.compiles(1) if rank == 3 else GrammarReady(1)  # type: ignore[union-attr]
        h.rank_says(rank, answer)
        assert not request.prepared
        assert not h.plans
    assert h.worker is not None
    h.rank_says(2, h.worker.compiles(1))
    assert request.prepared
    h.run()
    assert finishes(request) == ["stop"]


def test_a_grammar_that_one_rank_cannot_compile_has_failed() -> None:
    h = started(2)
    h.compile_at_once = False
    (request,) = ask(h, grammar=Grammar("regex", "4"))
    h.rank_says(0, GrammarReady(1))
    h.rank_says(1, GrammarFailed(1, "no such thing"))
    assert finishes(request) == ["error"]
    h.rank_says(1, GrammarReady(1))
    h.rank_says(1, GrammarFailed(1, "no such thing"))
    assert h.formed


def test_a_new_group_compiles_anew_on_every_rank() -> None:
    h = started(2)
    h.compile_at_once = False
    (request,) = ask(h, grammar=Grammar("regex", "4"))
    h.rank_says(0, GrammarReady(1))
    h.kill_rank(1)
    h.start_worker()
    h.rank_says(1, GrammarReady(1))
    assert not request.prepared
    h.ranks[1].worker.asked.pop(1)  # type: ignore[union-attr]
    worker = h.ranks[0].worker
    h.rank_says(0, worker.compiles(1))  # type: ignore[union-attr]
    assert request.prepared


def test_compile_and_drop_go_to_every_rank() -> None:
    h = RankHarness(2)
    sent: list[Any] = []
    deliver = h._to_worker
    h._to_worker = lambda session, message: (  # type: ignore[method-assign]
        sent.append((session, message)),
        deliver(session, message),
    )[1]
    h.connect()
    h.start_worker()
    ask(h, grammar=Grammar("lark", "4"))
    kinds = [type(message).__name__ for _, message in sent]
    assert kinds == ["Setup"] * 2 + ["CompileGrammar"] * 2 + ["DropGrammar"] * 2
    assert all(isinstance(message, (Setup, CompileGrammar)) for _, message in sent[:4])
    assert len({session for session, _ in sent}) == 2
