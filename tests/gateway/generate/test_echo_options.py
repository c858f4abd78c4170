"""echo, prompt_logprobs, token ids: what replies show of a request's tokens beside the text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from penstock.client import SequenceDelta
from penstock.protocol.common import TokenLogprobs
from penstock.request.sampling_params import SamplingParams
from penstock.text.tokenizer import Tokenizer
from penstock_gateway.generate.logprobs import characters_of, completion_logprobs
from testing.tiny_models import sentencepiece_tokenizer, with_bos
from tests.gateway import sse
from tests.gateway.byte_tokenizer import END
from tests.gateway.fake_engine import HELLO, FakeEngineClient, FakeGeneration, Step
from tests.gateway.request.test_request_fields import BODIES, CHAT, TEXT

PROMPT = "Once é"
IDS = list(PROMPT.encode())


@pytest.fixture
def engine() -> FakeEngineClient:
    """One whose generations know the log-probabilities of their prompts, where asked for."""
    engine = FakeEngineClient()
    submit = engine.submit

    async def knowing(prompt: list[int], params: SamplingParams, **rest: Any) -> FakeGeneration:
        generation = await submit(prompt, params, **rest)
        if params.prompt_logprobs is not None:
            count = params.prompt_logprobs
            generation.prompt_logprobs = [None, *(of(token, count) for token in prompt[1:])]
        return generation

    engine.submit = knowing  # type: ignore[method-assign]
    return engine


def of(token: int, count: int) -> TokenLogprobs:
    """A prompt's token is the second likeliest, after the letter z."""
    ids = (ord("z"), token, ord("y"))[:count]
    return TokenLogprobs(-2.0, ids, (-1.0, -2.0, -3.0)[:count])


def nothing(prompt: list[int], params: SamplingParams) -> Iterable[Step]:
    """max_tokens: 0."""
    yield [SequenceDelta(index=i, finish_reason="length") for i in range(params.n)]


async def post(http: httpx.AsyncClient, url: str = TEXT, **fields: Any) -> Any:
    body = ({"prompt": PROMPT} if url == TEXT else BODIES[CHAT]) | fields
    response = await http.post(url, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_what_lm_eval_sends(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    engine.script = nothing
    body = {"prompt": [IDS, IDS[:4]], "echo": True, "logprobs": 2, "max_tokens": 0}
    reply = await post(http, **body)
    first, second = reply["choices"]
    assert [params.prompt_logprobs for _, params, _ in engine.submitted] == [2, 2]
    assert (first["text"], second["text"]) == (PROMPT, PROMPT[:4])
    assert first["finish_reason"] == "length"
    logprobs = first["logprobs"]
    assert logprobs["tokens"] == [*"Once ", "bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs["token_logprobs"] == [None, -2, -2, -2, -2, -2, -2]
    assert logprobs["top_logprobs"][:2] == [None, {"z": -1, "n": -2}]
    # The token itself comes first, though others are likelier.
    assert [next(iter(top)) for top in logprobs["top_logprobs"][1:]] == logprobs["tokens"][1:]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5, 6]
    assert second["logprobs"]["tokens"] == [*"Once"]
    assert reply["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("n", [1, 2])
async def test_an_echo_comes_before_each_answer_streamed_or_not(
    http: httpx.AsyncClient, n: int
) -> None:
    whole = await post(http, echo=True, logprobs=1, n=n, max_tokens=20)
    body = {"prompt": PROMPT, "echo": True, "logprobs": 1, "n": n, "stream": True}
    response = await http.post(TEXT, json=body | {"max_tokens": 20})
    chunks = sse.parse(response.text)
    for index, choice in enumerate(whole["choices"]):
        assert choice["text"] == f"{PROMPT}{HELLO}{index}"
        assert sse.text_of(chunks, index) == choice["text"]
        pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        for name, values in choice["logprobs"].items():
            streamed = [v for piece in pieces for v in (piece["logprobs"] or {}).get(name, [])]
            assert streamed == values
        offsets = choice["logprobs"]["text_offset"]
        assert offsets == sorted(offsets)
        assert offsets[len(IDS)] == len(PROMPT)


async def test_an_echo_without_logprobs_costs_no_logprobs(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    reply = await post(http, echo=True)
    assert reply["choices"][0]["text"].startswith(PROMPT)
    assert reply["choices"][0]["logprobs"] is None
    assert engine.submitted[0][1].prompt_logprobs is None


async def test_an_echo_of_ids_is_their_text(http: httpx.AsyncClient) -> None:
    reply = await post(http, prompt=[72, 105], echo=True)
    assert reply["choices"][0]["text"].startswith("Hi")
    cut = await post(http, prompt="Hello", echo=True, truncate_prompt_tokens=2)
    assert cut["choices"][0]["text"].startswith(f"lo{HELLO}")


async def test_prompt_logprobs_are_vllms(http: httpx.AsyncClient) -> None:
    expected = {
        "122": {"logprob": -1, "rank": 1, "decoded_token": "z"},
        "110": {"logprob": -2, "rank": 2, "decoded_token": "n"},
    }
    [choice] = (await post(http, prompt_logprobs=2))["choices"]
    assert len(choice["prompt_logprobs"]) == len(IDS)
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1] == expected
    [choice] = (await post(http, prompt_logprobs=1))["choices"]
    assert choice["prompt_logprobs"][1] == {
        "110": {"logprob": -2, "rank": None, "decoded_token": "n"},
        "122": expected["122"],
    }
    reply = await post(http, CHAT, prompt_logprobs=0)
    assert reply["prompt_logprobs"][0] is None
    assert reply["prompt_logprobs"][1] == {
        "115": {"logprob": -2, "rank": None, "decoded_token": "s"}
    }
    assert "prompt_logprobs" not in await post(http, CHAT)
    assert "prompt_logprobs" not in (await post(http))["choices"][0]


async def test_an_echo_shows_no_more_alternatives_than_prompt_logprobs_did(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    [choice] = (await post(http, echo=True, logprobs=3, prompt_logprobs=1))["choices"]
    assert engine.submitted[0][1].prompt_logprobs == 3
    assert sorted(choice["prompt_logprobs"][1]) == ["110", "122"]


@pytest.mark.parametrize("url", [CHAT, TEXT])
async def test_token_ids(http: httpx.AsyncClient, engine: FakeEngineClient, url: str) -> None:
    whole = await post(http, url, return_token_ids=True)
    prompt = engine.submitted[0][0]
    assert prompt
    answer = [*f"{HELLO}0".encode(), END]
    [choice] = whole["choices"]
    assert choice["token_ids"] == answer
    assert (whole if url == CHAT else choice)["prompt_token_ids"] == prompt
    response = await http.post(url, json=BODIES[url] | {"return_token_ids": True, "stream": True})
    chunks = sse.parse(response.text)
    pieces = [piece for chunk in chunks for piece in chunk["choices"]]
    assert [i for piece in pieces for i in piece.get("token_ids", [])] == answer
    holders = chunks if url == CHAT else pieces
    assert [h["prompt_token_ids"] for h in holders if "prompt_token_ids" in h] == [
        engine.submitted[1][0]
    ]


async def test_tokens_written_as_ids(http: httpx.AsyncClient) -> None:
    fields = {"return_tokens_as_token_ids": True}
    [choice] = (await post(http, logprobs=2, **fields))["choices"]
    assert choice["logprobs"]["tokens"][0] == "token_id:72"
    assert list(choice["logprobs"]["top_logprobs"][0]) == ["token_id:72", "token_id:73"]
    [choice] = (await post(http, CHAT, logprobs=True, top_logprobs=2, **fields))["choices"]
    first = choice["logprobs"]["content"][0]
    assert (first["token"], first["bytes"]) == ("token_id:72", [72])
    assert [top["token"] for top in first["top_logprobs"]] == ["token_id:72", "token_id:73"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_echo_is_the_assistants_last_message(
    http: httpx.AsyncClient, stream: bool
) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "}]
    for said, begins in ((messages, "Well, "), (messages[:1], "")):
        body = {"messages": said, "echo": True, "stream": stream}
        response = await http.post(CHAT, json=body)
        if stream:
            text = sse.text_of(sse.parse(response.text))
        else:
            text = response.json()["choices"][0]["message"]["content"]
        assert text == f"{begins}{HELLO}0"


@pytest.mark.parametrize("stream", [False, True])
async def test_offsets_are_places_in_the_text(
    http: httpx.AsyncClient, engine: FakeEngineClient, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """With a BOS in front of the prompt, and a special token in the answer, of which no text says
    anything."""

    def encode(text: str, **_: Any) -> list[int]:
        return [END, *text.encode()]

    def script(prompt: list[int], params: SamplingParams) -> Iterable[Step]:
        said = [ord("a"), END, ord("b")]
        yield [SequenceDelta(index=0, token_ids=said, logprobs=[of(each, 1) for each in said])]
        yield [SequenceDelta(index=0, text="ab", finish_reason="stop")]

    monkeypatch.setattr(engine.text.tokenizer, "encode", encode)
    engine.script = script
    body = {"prompt": PROMPT, "echo": True, "logprobs": 1, "max_tokens": 4, "stream": stream}
    response = await http.post(TEXT, json=body)
    assert response.status_code == 200, response.text
    replies = sse.parse(response.text) if stream else [response.json()]
    pieces = [choice for reply in replies for choice in reply["choices"]]
    text = "".join(piece["text"] for piece in pieces)
    assert text == f"{PROMPT}ab"
    logprobs = [piece["logprobs"] for piece in pieces if piece["logprobs"]]
    tokens = [each for piece in logprobs for each in piece["tokens"]]
    offsets = [each for piece in logprobs for each in piece["text_offset"]]
    assert tokens[:2] == ["<|end|>", PROMPT[0]]
    assert tokens[-3:] == ["a", "<|end|>", "b"]
    assert offsets[:2] == [0, 0]
    assert offsets[-3:] == [len(PROMPT), len(PROMPT) + 1, len(PROMPT) + 1]
    for token, offset in zip(tokens, offsets, strict=True):
        assert token.startswith(("<|", "bytes:")) or text.startswith(token, offset)


@pytest.mark.parametrize("scheme", ["", "first"])
@pytest.mark.parametrize("text", ["Hello you", " Hello", "é", "\n"])
def test_offsets_by_tokenizers_that_put_something_in_front(scheme: str, text: str) -> None:
    backend = with_bos(sentencepiece_tokenizer(prepend_scheme=scheme), "<s>")
    tokenizer = Tokenizer.from_bytes(backend.to_str().encode(), add_bos=True, bos_token_id=1)
    ids = tokenizer.encode(text)
    assert ids[0] == 1
    offset = len(text) - characters_of(tokenizer, ids)
    found, end = completion_logprobs(tokenizer, ids, [None] * len(ids), offset)
    assert end == len(text)
    shown = zip(found.tokens, found.text_offset, strict=True)
    for place, (token, begin) in enumerate(shown):
        if place and not token.startswith("bytes:"):
            assert text.startswith(token, begin) or (not begin and text.startswith(token[1:]))
