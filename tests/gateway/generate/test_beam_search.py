"""best_of and beam search over HTTP: which requests may have them, and what the reply shows."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from penstock.client import ModelText
from penstock.protocol.common import TokenLogprobs
from penstock.text.tokenizer import Tokenizer
from testing.scripted_engine import byte_tokenizer_json
from tests.gateway.fake_engine import CONTEXT, FakeEngineClient
from tests.gateway.metrics.test_metrics import scrape
from tests.gateway.request.test_request_fields import BODIES, CHAT, TEXT, refusal


@pytest.mark.parametrize("url", [CHAT, TEXT])
async def test_the_likeliest_of_best_of_are_shown(
    http: httpx.AsyncClient, engine: FakeEngineClient, url: str
) -> None:
    """Each sequence says its index; the higher it is, the likelier is what this engine says."""
    script = engine.script

    def graded(prompt: list[int], params: Any) -> Any:
        for step in script(prompt, params):
            for delta in step:
                delta.logprobs = [TokenLogprobs(delta.index - 9.0, (), ())] * len(delta.token_ids)
            yield step

    engine.script = graded
    body = BODIES[url] | {"n": 2, "best_of": 5}
    reply = (await http.post(url, json=body)).json()
    assert engine.submitted[0][1].n == 5
    texts = [c["text"] if url == TEXT else c["message"]["content"] for c in reply["choices"]]
    assert [text[-1] for text in texts] == ["4", "3"]
    assert [c["index"] for c in reply["choices"]] == [0, 1]
    assert all(c["logprobs"] is None for c in reply["choices"])
    assert reply["usage"]["completion_tokens"] == 5 * (len(texts[0].encode()) + 1)


@pytest.mark.parametrize("url", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"n": 3, "best_of": 2}, "best_of", "[3 (n), 128], not 2"),
        ({"best_of": 129}, "best_of", "not 129"),
        ({"best_of": 2, "stream": True}, "best_of", "stream"),
        ({"use_beam_search": True, "stream": True}, "use_beam_search", "stream"),
        ({"use_beam_search": True, "n": 2, "best_of": 3}, "best_of", "must be the same, 2"),
        ({"use_beam_search": True, "stop": "x"}, "stop", "must be null"),
        ({"use_beam_search": True, "presence_penalty": 1}, "presence_penalty", "must be null"),
        ({"use_beam_search": True, "guided_regex": "x"}, "guided_regex", "must be null"),
        (
            {"use_beam_search": True, "response_format": {"type": "json_object"}},
            "response_format",
            "must be null",
        ),
    ],
)
async def test_what_does_not_go_together(
    http: httpx.AsyncClient, url: str, fields: dict[str, Any], param: str, says: str
) -> None:
    error = await refusal(http, url, fields)
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize("url", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 4, "max_tokens": 200}, "n"),
        ({"n": 1, "best_of": 4, "max_tokens": 200}, "best_of"),
        ({"n": 4, "use_beam_search": True, "max_tokens": 200}, "n"),
    ],
)
async def test_sequences_times_tokens_are_bounded(
    http: httpx.AsyncClient, engine: FakeEngineClient, url: str, fields: Any, param: str
) -> None:
    limits = msgspec.structs.replace(engine.welcome.limits, max_request_tokens=800)
    engine.welcome = msgspec.structs.replace(engine.welcome, limits=limits)
    error = await refusal(http, url, BODIES[url] | fields)
    assert error["param"] == param
    assert "more than the 800 that one request may have (--max-request-tokens)" in error["message"]
    assert engine.submitted == []
    # One sequence may always fill the context.
    whole = await http.post(url, json=BODIES[url] | {"max_tokens": 400})
    assert whole.status_code == 200


@pytest.mark.parametrize("n", [1, 4])
async def test_what_is_left_is_what_a_silent_request_gets(
    http: httpx.AsyncClient, engine: FakeEngineClient, n: int
) -> None:
    limits = msgspec.structs.replace(engine.welcome.limits, max_request_tokens=800)
    engine.welcome = msgspec.structs.replace(engine.welcome, limits=limits)
    assert (await http.post(CHAT, json=BODIES[CHAT] | {"n": n})).status_code == 200
    [(prompt, params, _)] = engine.submitted
    each = CONTEXT if n == 1 else 800 // n
    assert params.max_tokens == each - len(prompt)


@pytest.mark.parametrize("url", [CHAT, TEXT])
async def test_a_beam_search_counts_as_one_request(
    http: httpx.AsyncClient, engine: FakeEngineClient, url: str
) -> None:
    """With its prompt once, and the tokens of all beams."""
    tokenizer = Tokenizer.from_bytes(byte_tokenizer_json(), add_bos=False, bos_token_id=None)
    engine.text = ModelText(tokenizer, engine.template)  # type: ignore[arg-type]
    body = BODIES[url] | {"n": 3, "use_beam_search": True, "max_tokens": 4}
    reply = (await http.post(url, json=body)).json()
    texts = [c["text"] if url == TEXT else c["message"]["content"] for c in reply["choices"]]
    assert texts[0] == "AAAA"
    assert len(set(texts)) == 3
    [search] = engine.searches
    assert search.generated == 1 + 3 + 3 + 3
    found = await scrape(http)
    assert found["prompt_tokens_total"] == reply["usage"]["prompt_tokens"]
    assert found["request_prompt_tokens_count"] == 1
    assert found["generation_tokens_total"] == search.generated
    assert found["request_success_total,length"] == 1
    assert found["e2e_request_latency_seconds_count"] == 1
    assert found["time_to_first_token_seconds_count"] == 1
