"""Three models under a bound of memory that holds two: none loses a request, nor a byte of it."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
import yaml
from openai import OpenAI

from testing.serving import PATIENCE, Server, wait_until
from testing.tiny_models import write_gguf
from tests.system.test_batches import begin, choice_of, ended, results

pytestmark = [pytest.mark.timeout(1800)]

SHAPES = {"one": (3, 1), "two": (4, 2), "three": (6, 2)}
"""Heads and KV heads: so their weights differ."""
PROMPTS = [f"{word} {number}" for number in range(4) for word in ("abc", "hello", "def add")]
AT_ONCE = 12


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("several")
    return {
        name: str(write_gguf(folder / f"{name}.gguf", heads=heads, kv_heads=kv_heads))
        for name, (heads, kv_heads) in SHAPES.items()
    }


def body_of(prompt: str, model: str, *, stream: bool) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": 24,
        "temperature": 0.8,
        "seed": len(prompt),
        "stream": stream,
    }


async def text_of(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """What is said, whichever way it comes."""
    reply = await client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    if not body["stream"]:
        return str(reply.json()["choices"][0]["text"])
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    chunks = [msgspec.json.decode(event) for event in events[:-1]]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])


@pytest.fixture(scope="module")
def alone(files: dict[str, str]) -> dict[tuple[str, str], str]:
    """What each model says where it is the only one, one request after the other."""

    async def ask(url: str, name: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            for prompt in PROMPTS:
                said[name, prompt] = await text_of(client, body_of(prompt, name, stream=False))

    said: dict[tuple[str, str], str] = {}
    for name, file in files.items():
        with Server(file, "--served-model-name", name) as server:
            asyncio.run(ask(server.url, name))
    assert len({said[name, PROMPTS[0]] for name in files}) == len(files)  # They do differ.
    return said


@pytest.fixture(scope="module")
def several(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    entries: list[dict[str, Any]] = [
        {"name": name, "model": file, "load": "on-demand", "memory_gib": 1}
        for name, file in files.items()
    ]
    entries[0]["aliases"] = ["first"]
    entries.append(
        {
            "name": "broken",
            "model": files["one"],
            "load": "on-demand",
            "memory_gib": 1,
            # A worker can't be started so.
            "settings": {"attention_backend": "triton", "device": "cpu"},
        }
    )
    listed = tmp_path_factory.mktemp("list") / "models.yaml"
    listed.write_text(yaml.safe_dump({"models": entries}))
    flags = ("--models-memory-gib", "2", "--model-turn-seconds", "1", "--gateways", "2")
    data = tmp_path_factory.mktemp("data")
    with Server("--models", str(listed), *flags, "--data-dir", str(data)) as server:
        yield server


def state_of(server: Server, name: str) -> dict[str, Any]:
    models = httpx.get(f"{server.url}/status", timeout=PATIENCE).json()["models"]
    return next(each for each in models if each["model"] == name)


def starts(server: Server) -> int:
    return len(re.findall(r'event="model starts"', server.stderr))


async def test_requests_in_any_order_are_all_answered_as_by_each_model_alone(
    several: Server, alone: dict[tuple[str, str], str], pytestconfig: pytest.Config
) -> None:
    draw = random.Random(20)
    count = 1000 if pytestconfig.getoption("--long") else 100
    asked = [
        (draw.choice(list(SHAPES)), draw.choice(PROMPTS), draw.random() < 0.5) for _ in range(count)
    ]
    room = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=several.url, timeout=20 * PATIENCE) as client:

        async def one(model: str, prompt: str, stream: bool) -> str:
            async with room:
                return await text_of(client, body_of(prompt, model, stream=stream))

        said = await asyncio.gather(*(one(*each) for each in asked))
    for (model, prompt, _), text in zip(asked, said, strict=True):
        assert text == alone[model, prompt]
    # Three don't fit: at least one had to come back after it had made way.
    assert starts(several) >= 4
    loaded = [name for name in SHAPES if state_of(several, name)["state"] == "ready"]
    assert len(loaded) <= 2


def test_a_model_that_can_t_start_says_why_and_hurts_no_other(several: Server) -> None:
    body = body_of("abc", "broken", stream=False)
    with httpx.Client(base_url=several.url, timeout=2 * PATIENCE) as client:
        reply = client.post("/v1/completions", json=body)
        assert reply.status_code == 503, reply.text
        error = reply.json()["error"]
        assert error["code"] == "model_failed"
        assert "the model broken could not be started" in error["message"]
        assert 1 <= int(reply.headers["retry-after"]) <= 10
        begun = time.monotonic()
        assert client.post("/v1/completions", json=body).status_code == 503
        assert time.monotonic() - begun < PATIENCE / 2  # Nobody tries it anew for each request.
        body["model"] = "first"
        reply = client.post("/v1/completions", json=body)
        assert reply.status_code == 200
        assert reply.json()["model"] == "one"
        cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
        assert cards["broken"]["state"] == "failed"
        assert cards["first"]["root"] == "one"


def test_a_deadline_counts_while_a_model_is_loaded_and_the_timeline_tells(several: Server) -> None:
    with httpx.Client(base_url=several.url, timeout=2 * PATIENCE) as client:
        for name in SHAPES:
            client.post("/api/generate", json={"model": name, "keep_alive": 0})
        wait_until(lambda: state_of(several, "two")["state"] == "absent", PATIENCE)
        body = body_of("abc", "two", stream=False)
        reply = client.post("/v1/completions", json=body, headers={"x-deadline-ms": "30"})
        assert reply.status_code == 408, reply.text
        reply = client.post("/v1/completions", json=body, headers={"x-penstock-timeline": "1"})
        assert reply.status_code == 200
        parts = dict(part.split(";dur=") for part in reply.headers["server-timing"].split(", "))
        assert float(parts["model"]) > 0
        assert float(parts["prepare"]) >= 0
        page = client.get("/metrics").text
        assert "penstock:model_wait_seconds_count" in page


def test_a_model_whose_engine_core_dies_is_back_and_others_notice_nothing(
    several: Server,
) -> None:
    def serves_two(status: Any) -> bool:
        return any(each["model"] == "two" and each["ready"] for each in status["models"])

    with httpx.Client(base_url=several.url, timeout=2 * PATIENCE) as client:
        client.post("/v1/completions", json=body_of("abc", "two", stream=False))
        first = several.child("engine of two")
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: several.children().get("penstock: engine of two") not in (None, first))
        wait_until(lambda: several.each_gateway(serves_two))
        reply = client.post("/v1/completions", json=body_of("abc", "two", stream=False))
        assert reply.status_code == 200


def test_a_batch_may_be_of_all_models(several: Server, alone: dict[tuple[str, str], str]) -> None:
    asked = [(name, prompt) for prompt in PROMPTS[:3] for name in SHAPES]
    lines = [
        {
            "custom_id": f"{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": body_of(prompt, name, stream=False),
        }
        for number, (name, prompt) in enumerate(asked)
    ]
    content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    with OpenAI(base_url=f"{several.url}/v1", api_key="none", timeout=240) as client:
        batch = ended(client, begin(client, content))
        found = {int(each["custom_id"]): each for each in results(client, batch.output_file_id)}
    assert len(found) == len(asked)
    for number, key in enumerate(asked):
        assert choice_of(found[number])["text"] == alone[key]


def test_models_named_side_by_side_are_all_there_when_it_is_ready(files: dict[str, str]) -> None:
    with Server(files["one"], files["two"], "--max-num-seqs", "4") as server:
        assert server.model == "one,two"
        os.kill(server.child("worker 0 of one"), signal.SIGKILL)
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            reply = client.post("/v1/completions", json=body_of("abc", "two", stream=False))
            assert reply.status_code == 200
            states = {card["id"]: card["state"] for card in client.get("/v1/models").json()["data"]}
            assert states["two"] == "ready"
            wait_until(lambda: state_of(server, "one")["ready"], PATIENCE)
            reply = client.post("/v1/completions", json=body_of("abc", "one", stream=False))
            assert reply.status_code == 200
