"""Request fields against a real system: what they do to what the model says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from testing.serving import Server

pytestmark = [pytest.mark.timeout(600)]
PROMPT = "The capital of France is"


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=240) as client:
        yield client


def complete(http: httpx.Client, **fields: Any) -> Any:
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 8} | fields
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_an_echo_scores_the_prompt_as_the_answer_was_scored(http: httpx.Client) -> None:
    """The answer, sent back as part of the prompt, has the log-probabilities that it had."""
    [first] = complete(http, logprobs=1, return_token_ids=True)["choices"]
    whole = first["prompt_token_ids"] + first["token_ids"]
    [echo] = complete(http, prompt=whole, echo=True, logprobs=1, max_tokens=0)["choices"]
    assert echo["text"] == PROMPT + first["text"]
    scores = echo["logprobs"]["token_logprobs"]
    assert scores[0] is None
    assert scores[-len(first["token_ids"]) :] == first["logprobs"]["token_logprobs"]
    assert len(scores) == len(whole)


def test_echoed_scores_do_not_depend_on_the_load(http: httpx.Client) -> None:
    """Every log-probability of prompts of many lengths, with 1, 8 and 64 of them in flight, each
    time computed anew."""
    prompts = [f"Number {n} rises" + " and sets in the west" * (n % 5) for n in range(64)]

    def scored(at_once: int, salt: str) -> list[Any]:
        def score(prompt: str) -> Any:
            fields = {"prompt": prompt, "echo": True, "logprobs": 3, "cache_salt": salt}
            [choice] = complete(http, max_tokens=1, **fields)["choices"]
            return choice["text"], choice["logprobs"]

        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(score, prompts))

    alone = scored(1, "one")
    assert sum(len(logprobs["token_logprobs"]) for _, logprobs in alone) > 480
    assert scored(8, "eight") == alone
    assert scored(64, "sixty-four") == alone


def test_prompt_logprobs(http: httpx.Client) -> None:
    [choice] = complete(http, prompt_logprobs=2, max_tokens=1)["choices"]
    first, *rest = choice["prompt_logprobs"]
    assert first is None
    for entry in rest:
        assert 2 <= len(entry) <= 3
        assert sorted(one["rank"] or 99 for one in entry.values())[:2] == [1, 2]


def test_bias_and_bad_words_change_what_is_said(http: httpx.Client) -> None:
    [plain] = complete(http, return_token_ids=True)["choices"]
    word = plain["token_ids"][0]
    [biased] = complete(http, logit_bias={str(word): -100}, return_token_ids=True)["choices"]
    [barred] = complete(http, bad_words=[" Paris"])["choices"]
    assert "Paris" in plain["text"]
    assert word not in biased["token_ids"]
    assert "Paris" not in barred["text"]


def test_the_best_of_more_and_the_best_of_all(http: httpx.Client) -> None:
    fields = {"temperature": 1, "seed": 5, "logprobs": 0}
    five = complete(http, n=5, **fields)["choices"]
    means = [sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["tokens"]) for c in five]
    reply = complete(http, n=1, best_of=5, **fields)
    assert reply["choices"][0]["text"] == five[means.index(max(means))]["text"]
    greedy = complete(http, logprobs=0)["choices"][0]
    beams = complete(http, n=3, use_beam_search=True, logprobs=0, ignore_eos=True)["choices"]
    assert len({beam["text"] for beam in beams}) == 3
    assert sum(beams[0]["logprobs"]["token_logprobs"]) >= sum(greedy["logprobs"]["token_logprobs"])


def test_structures(http: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "inhabitants": {"type": "integer", "maximum": 99999999, "minimum": 0},
        },
        "required": ["city", "inhabitants"],
        "additionalProperties": False,
    }
    format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    [choice] = complete(http, response_format=format, max_tokens=100)["choices"]
    assert choice["finish_reason"] == "stop"
    assert list(json.loads(choice["text"])) == ["city", "inhabitants"]
    [choice] = complete(http, guided_choice=["Lyon", "Paris"])["choices"]
    assert choice["text"] == "Paris"
    grammar = 'root ::= "- " [a-z]{3,6} "\\n" "- " [a-z]{3,6}'
    [choice] = complete(http, structured_outputs={"grammar": grammar}, max_tokens=40)["choices"]
    assert re.fullmatch("- [a-z]{3,6}\n- [a-z]{3,6}", choice["text"])


def refusal(response: httpx.Response) -> tuple[int, Any]:
    """The status, and the error of the body or of a stream's only event."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        return response.status_code, response.json()["error"]
    data = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    [event] = [json.loads(each) for each in data if each != "[DONE]"]
    return response.status_code, event["error"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_hostile_grammar_is_a_400_and_another_request_goes_on(
    http: httpx.Client, stream: bool
) -> None:
    hostile = {"type": "integer", "multipleOf": 1_000_003 + stream}
    body = {"prompt": "x", "guided_json": hostile, "stream": stream}
    with ThreadPoolExecutor(1) as threads:
        refused = threads.submit(http.post, "/v1/completions", json=body)
        done = 0
        while not refused.done():
            complete(http, max_tokens=1)
            done += 1
    status, error = refusal(refused.result())
    # A stream that waits long is opened by a ping, after which its status can't change.
    assert status == 400 or (stream and status == 200)
    assert error["param"] == "guided_json"
    assert error["type"] == "invalid_request_error"
    # One may be over before the grammar is there, and one ends when it has been refused.
    assert done >= 4


def test_responses(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", timeout=240) as sdk:
        asked: dict[str, Any] = {
            "model": server.model,
            "instructions": "You are a helpful assistant.",
            "input": "What is the capital of France?",
            "temperature": 0,
            "max_output_tokens": 24,
        }
        reply = sdk.responses.create(**asked)
        assert "Paris" in reply.output_text
        with sdk.responses.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        assert kinds[0] == "response.created"
        assert final.output_text == reply.output_text


@pytest.mark.parametrize("stream", [False, True])
def test_listed_ids_have_the_log_probabilities_that_they_have_among_the_likeliest(
    http: httpx.Client, server: Server, stream: bool
) -> None:
    """Each token of the answer has them, drafted or not: in chat, the token itself and the ids."""
    ids = [28, 30, 216, 260, 7042]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        def entries(**more: Any) -> list[Any]:
            asked: Any = {
                "model": client.models.list().data[0].id,
                "messages": [{"role": "user", "content": "Count: one, two, three, one, two,"}],
                "max_tokens": 12,
                "temperature": 0,
                "logprobs": True,
                "stream": stream,
            }
            own = {"return_tokens_as_token_ids": True}
            more["extra_body"] = own | more.get("extra_body", {})
            found = client.chat.completions.create(**asked, **more)
            choices = [each.choices[0] for each in (found if stream else [found]) if each.choices]
            return [entry for each in choices if each.logprobs for entry in each.logprobs.content]

        listed = entries(extra_body={"logprob_token_ids": ids})
        likeliest = entries(top_logprobs=20)
    assert [each.token for each in listed] == [each.token for each in likeliest]
    compared = 0
    for found, top in zip(listed, likeliest, strict=True):
        shown = {each.token: each.logprob for each in found.top_logprobs}
        assert list(shown) == list(dict.fromkeys([found.token, *(f"token_id:{n}" for n in ids)]))
        known = {each.token: each.logprob for each in top.top_logprobs}
        both = shown.keys() & known.keys()
        compared += len(both)
        assert {name: shown[name] for name in both} == {name: known[name] for name in both}
    assert compared > len(listed)


def test_listed_ids_in_completions(http: httpx.Client) -> None:
    [found] = complete(http, logprobs=1, logprob_token_ids=[260, 5])["choices"]
    [plain] = complete(http, logprobs=1)["choices"]
    assert found["text"] == plain["text"]
    assert found["logprobs"]["token_logprobs"] == plain["logprobs"]["token_logprobs"]
    assert all(2 <= len(top) <= 3 for top in found["logprobs"]["top_logprobs"])
