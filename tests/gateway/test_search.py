"""best_of and beam search over HTTP: which requests may have them, and what the reply shows."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from penstock.protocol.common import TokenLogprobs
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.test_request_fields import BODIES, CHAT, TEXT, refusal


@pytest.mark.parametrize("url", [CHAT, TEXT])
async def test_the_likeliest_of_best_of_are_shown(
    http: httpx.AsyncClient, engine: FakeEngineClient, url: str
) -> None:
    """Each sequence says its index; the higher it is, the likelier is what this engine says."""
    script = engine.script

    def graded(prompt: list[int], params: Any) -> Any:
        for step in script(prompt, params):
            for delta in step:
                delta.logprobs = [TokenLogprobs(delta.index - 9.0, [], [])] * len(delta.token_ids)
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
