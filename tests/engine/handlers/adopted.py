"""Requests that one reader begins and another goes on with."""

from __future__ import annotations

from typing import Any

from penstock.protocol.common import Claim
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore, undisturbed

PROMPT = [3, 4, 5, 6, 8] * 3
FIRST, AGAIN = Claim(b"an answer"), Claim(b"an answer", goes_on=True)
LONG: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, "logprobs": 2, "seed": 5}


def begun(h: Harness, steps: int, **options: Any) -> tuple[Front, RequestScore]:
    front = h.connect()
    h.start_worker()
    request = h.submit(front, PROMPT, claim=FIRST, **{**LONG, **options})
    for _ in range(steps):
        h.run_step()
    return front, request


def tokens_computed(h: Harness) -> int:
    return h.core.state.workers.tokens_computed


def computed_once(**options: Any) -> int:
    h = Harness()
    begun(h, 0, **options)
    h.run()
    return tokens_computed(h)


def is_whole(h: Harness, request: RequestScore) -> None:
    for index, score in request.sequences.items():
        expected, finish, _ = undisturbed(request.submit, index, h.facts.max_model_len)
        assert score.terminal is not None
        assert (score.tokens, score.terminal.finish) == (expected, finish)
        assert len(score.logprobs) == len(score.tokens)
