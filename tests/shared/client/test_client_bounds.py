"""What one request may bring: refused in front, by the engine core's own limits, before anything
is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock import SamplingParams
from penstock.client import BeamSearchParams, EngineClient, beam_search, best_of
from penstock.client.request_bounds import max_output
from penstock.client.served_model import common_limits
from penstock.errors import InvalidRequest
from penstock.protocol.to_frontend import Limits
from testing.scripted_engine import FAST, LIMITS, ScriptedEngine

pytestmark = [pytest.mark.timeout(240)]

SMALL = {
    "max_request_tokens": 120,
    "max_logit_bias": 2,
    "max_allowed_token_ids": 3,
    "max_bad_words_tokens": 12,
}
"""The context is 100 tokens."""


def test_the_product_is_what_counts() -> None:
    limits = Limits(
        max_model_len=100,
        vocab_size=9,
        max_waiting_requests=1,
        max_num_seqs=1,
        max_request_tokens=120,
    )
    for prompt in range(1, 100):
        for n in (1, 2, 3, 60, 128):
            for wanted in (None, 0, 1, 20, 99, 5000):
                room = 100 - prompt
                most = min(room if wanted is None else wanted, room)
                fits = [at for at in range(most + 1) if n == 1 or n * (prompt + at) <= 120]
                allowed = max(fits, default=-1) if wanted is None else most
                if allowed in fits and (allowed >= 1 or wanted is not None):
                    assert max_output(prompt, wanted, n, limits) == allowed
                else:
                    with pytest.raises(InvalidRequest) as refused:
                        max_output(prompt, wanted, n, limits)
                    assert refused.value.param == "n"


def test_the_refusal_says_what_is_allowed() -> None:
    limits = common_limits([LIMITS, LIMITS])
    with pytest.raises(InvalidRequest) as refused:
        max_output(90, 10, 50_000, limits, many="best_of")
    assert str(refused.value) == (
        "best_of is 50000, and each sequence may have 100 tokens, the prompt's 90 among them: "
        "together 5000000, more than the 4194304 that one request may have "
        "(--max-request-tokens); with so many each, best_of may be at most 41943"
    )
    assert refused.value.param == "best_of"


@pytest.fixture
async def small(endpoint: str) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(endpoint, limits=SMALL)
    yield engine
    await engine.die()


@pytest.fixture
async def front(endpoint: str, small: ScriptedEngine) -> AsyncIterator[EngineClient]:
    client = EngineClient(endpoint, name="test", settings=FAST)
    await client.start()
    await client.wait_connected(60)
    yield client
    await client.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"n": 3, "max_tokens": 21}, "n", "together 123, more than the 120"),
        ({"n": 7, "max_tokens": None}, "n", "at most 5"),
        ({"logit_bias": {1: 1, 2: 2, 3: 0}}, "logit_bias", "3 token ids; at most 2"),
        ({"allowed_token_ids": [1, 2, 3, 4]}, "allowed_token_ids", "4 token ids; at most 3"),
        ({"bad_words": ["ab", "abcd"]}, "bad_words", "more than 12 token ids"),
    ],
)
async def test_what_is_too_much_is_refused_by_name(
    front: EngineClient, small: ScriptedEngine, fields: dict[str, Any], param: str, says: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await front.submit(list(range(20)), SamplingParams(**fields), name="r")
    assert refused.value.param == param
    assert says in str(refused.value)
    assert "--max-" in str(refused.value)
    assert small.submits == []


@pytest.mark.asyncio
async def test_what_is_just_allowed_is_sent(front: EngineClient, small: ScriptedEngine) -> None:
    prompt = list(range(20))
    for fields, tokens in (
        ({"n": 3, "max_tokens": 20}, 20),
        ({"n": 5, "max_tokens": None}, 4),
        ({"n": 1, "max_tokens": None}, 80),
        ({"logit_bias": {1: 1, 2: 2}, "bad_words": ["ab", "cde"]}, 16),
        ({"allowed_token_ids": [1, 2, 3]}, 16),
    ):
        generation = await front.submit(prompt, SamplingParams(**fields), name="r")
        assert small.submits[-1].stopping.max_tokens == tokens
        generation.abort()


@pytest.mark.asyncio
async def test_searches_count_all_that_they_follow(
    front: EngineClient, small: ScriptedEngine
) -> None:
    prompt = list(range(20))
    with pytest.raises(InvalidRequest, match=r"beam_width is 4, .* at most 3"):
        await beam_search(front, prompt, BeamSearchParams(beam_width=4), name="b")
    with pytest.raises(InvalidRequest, match="n is 4"):
        await best_of(front, prompt, SamplingParams(), best_of=4, name="b")
    assert small.submits == []


@pytest.mark.asyncio
async def test_of_several_engine_cores_the_strictest_counts(
    front: EngineClient, small: ScriptedEngine
) -> None:
    """Fields that are new are compared as the others are."""
    assert front.welcome is not None
    both = common_limits([LIMITS, front.welcome.limits])
    for name, value in SMALL.items():
        assert getattr(both, name) == value
