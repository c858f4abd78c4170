"""Replies that are not streamed: the worker computes several tokens for one plan, and nothing else
changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import gguf
import httpx
import pytest

from testing.serving import PATIENCE, Server
from testing.tiny_models import write_gguf

pytestmark = [pytest.mark.timeout(600)]

PROMPT = "The capital of France is"
TOKENS = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of a tiny model with a long context: its steps are short, so plans are for many
    tokens."""

    def adjust(writer: gguf.GGUFWriter) -> None:
        writer.add_context_length(2048)

    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_gguf(path, adjust=adjust, without=("context_length",))
    with Server(str(path)) as running:
        yield running


Answer = dict[int, dict[str, Any]]
"""Text, token ids, log-probabilities, and what it ended with, by choice."""


def grown(answer: Answer, choice: dict[str, Any]) -> None:
    told = answer.setdefault(choice["index"], {"text": "", "ids": [], "logprobs": []})
    told["text"] += choice["text"]
    told["ids"] += choice["token_ids"] or []
    told["logprobs"] += (choice["logprobs"] or {}).get("token_logprobs", [])
    if choice["finish_reason"] is not None:
        told["end"] = choice["finish_reason"], choice["stop_reason"]


def asked(server: Server, body: dict[str, Any], *, stream: bool) -> tuple[Answer, int]:
    """The answer, and how many of its tokens had no plan of their own."""
    answer: Answer = {}
    fields = {"prompt": PROMPT, "max_tokens": TOKENS, "return_token_ids": True, "stream": stream}
    with httpx.Client(base_url=server.url, timeout=4 * PATIENCE) as client:
        reply = client.post(
            "/v1/completions",
            json={**fields, "ignore_eos": True, **body},
            headers={"x-penstock-timeline": "1"},
        )
    assert reply.status_code == 200, reply.text
    if stream:
        lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
        chunks = [json.loads(line) for line in lines]
    else:
        chunks = [reply.json()]
    for chunk in chunks:
        for choice in chunk["choices"]:
            grown(answer, choice)
    (timeline,) = [c["penstock_timeline"] for c in chunks if "penstock_timeline" in c]
    return answer, sum(each["extra_steps"] for each in timeline["sequences"])


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0},
        {"temperature": 0.8, "seed": 5, "top_p": 0.9, "repetition_penalty": 1.1},
        {"temperature": 1, "seed": 6, "n": 3},
        {"temperature": 1, "seed": 7, "logprobs": 2},
        {"prompt": ["One", "Two words", PROMPT], "temperature": 1, "seed": 8},
    ],
    ids=["greedy", "sampled", "three choices", "log-probabilities", "three prompts"],
)
def test_a_reply_is_its_stream_in_one_piece(server: Server, body: dict[str, Any]) -> None:
    streamed, none = asked(server, body, stream=True)
    whole, extra_steps = asked(server, body, stream=False)
    assert whole == streamed
    assert {len(told["ids"]) for told in whole.values()} == {TOKENS}
    assert none == 0
    assert extra_steps > 0


def test_stop_strings_are_looked_for_token_by_token(server: Server) -> None:
    body = {"temperature": 1, "seed": 9}
    text = asked(server, body, stream=False)[0][0]["text"]
    body["stop"] = text[len(text) // 2 :][:8]
    streamed, _ = asked(server, body, stream=True)
    whole, extra_steps = asked(server, body, stream=False)
    assert whole == streamed
    assert whole[0]["end"] == ("stop", body["stop"])
    assert extra_steps == 0


def test_who_leaves_ends_it_in_the_engine(server: Server) -> None:
    choices, tokens = 32, 1900
    body = {"prompt": PROMPT, "max_tokens": tokens, "n": choices, "ignore_eos": True}

    async def run() -> None:
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=4 * PATIENCE) as client,
            asyncio.timeout(2 * PATIENCE),
        ):

            async def told() -> dict[str, Any]:
                return dict((await client.get("/status")).json())

            before = (await told())["engine"]["tokens_generated"]
            asking = asyncio.create_task(client.post("/v1/completions", json=body))
            while not (await told())["engine"]["running"]:
                await asyncio.sleep(0.02)
            asking.cancel()
            while True:
                status = await told()
                engine = status["engine"]
                busy = sum(engine[key] for key in ("running", "waiting", "blocks_used"))
                # A step on its way still writes to the blocks of sequences that have ended.
                if busy + status["gateway"]["open_requests"] == 0:
                    break
                await asyncio.sleep(0.02)
            assert engine["tokens_generated"] - before < choices * tokens

    asyncio.run(run())
