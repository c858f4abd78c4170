"""The ways into Penstock, each as a newcomer takes it: without sampling settings or a seed."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

from openai import OpenAI

from penstock import LLM
from penstock.cli.http_client import HttpClient

MODEL = "smollm2-135m"
MAX_TOKENS = 32
"""Of an answer: what was asked for is said by then, or isn't."""
TIMEOUT = 300.0

Ask = Callable[[str], str]
"""A question's answer."""


def http(url: str, **more: Any) -> Ask:
    """As curl asks. more: fields of the body."""
    return lambda question: _text(
        post(url, "/v1/chat/completions", {**_body(question), "max_tokens": MAX_TOKENS, **more})
    )


def sdk(url: str, seed: int | None = None) -> Ask:
    """As the README has it: a stream, read by OpenAI's package. seed: None: the server draws."""
    client = OpenAI(base_url=f"{url}/v1", api_key="unused", timeout=TIMEOUT)

    def ask(question: str) -> str:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": question}],
            max_tokens=MAX_TOKENS,
            stream=True,
            seed=seed,
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    return ask


def page(url: str) -> Ask:
    """The body that the chat page sends with its parameters left alone."""
    client = HttpClient(url, None, TIMEOUT)

    def ask(question: str) -> str:
        body = {**_body(question), "stream": True, "stream_options": {"include_usage": True}}
        events = client.events("/v1/chat/completions", {**body, "max_tokens": MAX_TOKENS})
        pieces = (choice["delta"].get("content") for each in events for choice in each["choices"])
        return "".join(piece or "" for piece in pieces)

    return ask


def run(url: str) -> Ask:
    """`penstock run --url`. Without it the command starts an engine and is `LLM.chat`."""

    def ask(question: str) -> str:
        words = ["run", "--url", url, question, "--max-tokens", str(MAX_TOKENS)]
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *words],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"penstock run: {done.stderr}")
        return done.stdout

    return ask


def library(llm: LLM, questions: list[str]) -> list[str]:
    """`LLM.chat`. Its usual 16 tokens, vLLM's, are too short for an answer."""
    params = llm.get_default_sampling_params().clone()
    params.max_tokens = MAX_TOKENS
    conversations = [[{"role": "user", "content": each}] for each in questions]
    return [each.outputs[0].text for each in llm.chat(conversations, params, use_tqdm=False)]


def prompt_token_ids(url: str, question: str) -> list[int]:
    """What the server makes of a question."""
    return list(post(url, "/tokenize", _body(question))["tokens"])


def _body(question: str) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": question}]}


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    """A POST of JSON, and what it answers."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
        return json.load(reply)


def _text(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])
