"""What is done once for a body, whatever its number of prompts, and how much of a turn of the event
loop many prompts take."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.client import EngineClient, turn_budget
from penstock.client.ready_params import ready_params, without_ready
from penstock.request.sampling_params import SamplingParams
from penstock.request.structured_outputs import StructuredOutputs
from penstock.request.terms import Terms
from penstock.text.stop import StopStrings
from penstock.text.tokenizer import Tokenizer
from penstock_gateway.generate.batch import GenerationBatch
from penstock_gateway.generate.search import _best_of, search_all
from testing.scripted_engine import FAST, LIMITS, ScriptedEngine
from tests.gateway.fake_engine import MODEL
from tests.gateway.loop_turns import LoopTurns
from tests.shared.client.client_requests import until

PROMPTS = [[5]] * 12
TERMS = Terms(fingerprint="f")
WORDS = [f"word {number}" for number in range(10)]
PARAMS = SamplingParams(
    bad_words=WORDS,
    allowed_token_ids=list(range(250)),
    structured_outputs=StructuredOutputs(json={"type": "string"}),
)


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[ScriptedEngine]:
    core = ScriptedEngine(f"ipc://{tmp_path}/s")
    yield core
    await core.die()


@pytest.fixture
async def client(tmp_path: Path, core: ScriptedEngine) -> AsyncIterator[EngineClient]:
    client = EngineClient(f"ipc://{tmp_path}/s", name="test", settings=FAST)
    await client.start()
    await client.wait_connected(60)
    yield client
    await client.close()


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often words were tokenised, and grammars written."""
    counts: Counter[str] = Counter()
    encode, definition = Tokenizer.encode, StructuredOutputs.definition

    def counted_encode(self: Tokenizer, *given: Any, **named: Any) -> list[int]:
        counts["encode"] += 1
        return encode(self, *given, **named)

    def counted_definition(self: StructuredOutputs) -> Any:
        counts["definition"] += 1
        return definition(self)

    monkeypatch.setattr(Tokenizer, "encode", counted_encode)
    monkeypatch.setattr(StructuredOutputs, "definition", counted_definition)
    return counts


async def submitted(client: EngineClient, **more: Any) -> GenerationBatch:
    params = more.pop("params", [PARAMS] * len(PROMPTS))
    return await GenerationBatch.submit(client, PROMPTS, params, name="r", terms=TERMS, **more)


async def test_bad_words_and_grammars_are_made_once(
    core: ScriptedEngine, client: EngineClient, worked: Counter[str]
) -> None:
    attempt = asyncio.create_task(submitted(client))
    await until(lambda: len(core.submits) == len(PROMPTS))
    assert worked == {"encode": 2 * len(WORDS), "definition": 1}
    held = {(repr(each.sampling.adjustments), repr(each.grammar)) for each in core.submits}
    assert len(held) == 1
    assert core.submits[0].grammar is not None
    adjustments = core.submits[0].sampling.adjustments
    assert adjustments is not None
    assert len(adjustments.bad_words) == 2 * len(WORDS)
    assert len({each.sampling.seed for each in core.submits}) == len(PROMPTS)
    attempt.cancel()
    await until(lambda: len(core.aborts) == len(PROMPTS))


async def test_prompts_that_leave_different_rooms_share_them(
    core: ScriptedEngine, client: EngineClient, worked: Counter[str]
) -> None:
    params = [PARAMS.with_max_tokens(5 + number) for number in range(len(PROMPTS))]
    attempt = asyncio.create_task(submitted(client, params=params))
    await until(lambda: len(core.submits) == len(PROMPTS))
    assert worked == {"encode": 2 * len(WORDS), "definition": 1}
    assert [each.stopping.max_tokens for each in core.submits] == [*range(5, 17)]
    attempt.cancel()


async def test_a_body_whose_prompts_leave_different_rooms_is_read_once(
    http: httpx.AsyncClient, worked: Counter[str]
) -> None:
    body = {"guided_json": {"type": "string"}, "allowed_token_ids": [65], "max_tokens": -1}
    counts = []
    for prompts in (2, 12):
        worked.clear()
        many = ["a" * (1 + number) for number in range(prompts)]
        answer = await http.post("/v1/completions", json={"model": MODEL, "prompt": many, **body})
        assert answer.status_code == 200, answer.text
        counts.append(worked["definition"])
    assert counts[1] == counts[0]


async def test_who_has_it_ready_makes_nothing(
    core: ScriptedEngine, client: EngineClient, worked: Counter[str]
) -> None:
    assert client.text is not None
    ready = ready_params(PARAMS, client.text.tokenizer, LIMITS)
    worked.clear()
    bare = [without_ready(PARAMS)] * len(PROMPTS)
    attempt = asyncio.create_task(submitted(client, params=bare, ready=[ready] * len(PROMPTS)))
    await until(lambda: len(core.submits) == len(PROMPTS))
    assert not worked
    assert {each.grammar for each in core.submits} == {ready.grammar}
    attempt.cancel()


async def test_a_search_makes_them_once(
    core: ScriptedEngine, client: EngineClient, worked: Counter[str]
) -> None:
    searching = search_all(
        _best_of(3), client, PROMPTS, [PARAMS] * len(PROMPTS), name="r", terms=TERMS
    )
    attempt = asyncio.create_task(searching)
    await until(lambda: len(core.submits) == len(PROMPTS))
    assert worked == {"encode": 2 * len(WORDS), "definition": 1}
    attempt.cancel()


async def test_what_answers_end_at_is_made_once(
    core: ScriptedEngine, client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    link = StopStrings._link
    monkeypatch.setattr(StopStrings, "_link", lambda self: made.append(self) or link(self))
    params = [SamplingParams(n=3, stop=["one end", "another"])] * len(PROMPTS)
    async with await submitted(client, params=params):
        assert len(core.submits) == len(PROMPTS)
    assert len(made) == 1


async def test_many_prompts_take_a_turn_s_share_and_no_more(
    core: ScriptedEngine, client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = LoopTurns()
    monkeypatch.setattr(turn_budget.time, "thread_time", lambda: turns.now)
    place = client._dispatch.place_ahead

    def slow(generation: Any) -> None:
        turns.work()
        place(generation)

    monkeypatch.setattr(client._dispatch, "place_ahead", slow)
    async with await submitted(client, params=[SamplingParams()] * len(PROMPTS)):
        turns.stop()
    assert turns.done.total() == len(PROMPTS)
    assert max(turns.done.values()) == 3, "as many as last TURN, and one more"
    assert [each.name for each in core.submits] == [f"r-{i}" for i in range(len(PROMPTS))]


async def test_one_that_is_refused_ends_all(core: ScriptedEngine, client: EngineClient) -> None:
    with pytest.raises(Exception, match="the prompt is empty"):
        await GenerationBatch.submit(
            client, [[5], [], [6]], [SamplingParams()] * 3, name="r", terms=TERMS
        )
    await until(lambda: len(core.aborts) == len(core.submits))
