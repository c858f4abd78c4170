"""A model that is paused under streams, over HTTP and in the library."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from penstock import AsyncLLM, SamplingParams
from testing.serving import PATIENCE, Server, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BODY = {"prompt": "abc", "max_tokens": 100, "temperature": 0, "ignore_eos": True, "stream": True}


class Stream(threading.Thread):
    """A completion that is read as it comes."""

    def __init__(self, url: str, **changes: Any) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._body = {**BODY, **changes}
        self.text = ""
        self.finish: str | None = None
        self.error = ""
        self.start()

    def run(self) -> None:
        url, patience = f"{self._url}/v1/completions", 4 * PATIENCE
        with httpx.stream("POST", url, json=self._body, timeout=patience) as r:
            for line in r.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        self.error = event["error"]["message"]
                        continue
                    (choice,) = event["choices"]
                    self.text += choice["text"]
                    self.finish = choice["finish_reason"] or self.finish


@pytest.fixture(scope="module")
def running(tiny_model: str) -> Any:
    with Server(tiny_model, "--gateways", "2") as server:
        yield server


def said(server: Server, path: str, **query: str) -> Any:
    ask = httpx.get if path == "is_paused" else httpx.post
    reply = ask(f"{server.url}/{path}", params=query, timeout=PATIENCE)
    assert reply.status_code == 200, reply.text
    return reply.json()


def paused(server: Server) -> bool:
    """Whether both gateways say that it is paused: another connection may reach the other one."""
    return all(said(server, "is_paused")["is_paused"] for _ in range(8))


def test_streams_go_on_where_they_were(running: Server) -> None:
    alone = Stream(running.url)
    alone.join()
    assert alone.finish == "length"
    streams = [Stream(running.url) for _ in range(3)]
    wait_until(lambda: all(each.text for each in streams))
    assert said(running, "pause", mode="keep") == {"status": "paused"}
    wait_until(lambda: paused(running))
    late = Stream(running.url)
    steps = httpx.get(f"{running.url}/status", timeout=PATIENCE).json()
    assert said(running, "resume") == {"status": "resumed"}
    for each in (*streams, late):
        each.join(PATIENCE)
        assert (each.text, each.finish) == (alone.text, "length")
    assert steps


def running_after(server: Server, moment: float) -> int:
    """Sequences that the engine core has, as it told after this moment."""
    while True:
        now = time.monotonic()
        (engine,) = server.get("/status")[1]["engines"]
        if engine["status_age"] < now - moment:
            return int(engine["running"])
        time.sleep(0.02)


def begun_and_paused(server: Server) -> Stream:
    """A stream that stands still in the middle."""
    for _ in range(50):
        stream = Stream(server.url, max_tokens=120)
        wait_until(lambda stream=stream: bool(stream.text))
        assert said(server, "pause", mode="keep") == {"status": "paused"}
        if running_after(server, time.monotonic()):
            return stream
        stream.join()
        said(server, "resume")  # It was faster.
    raise AssertionError("no stream of 50 could be paused in the middle")


def whole(server: Server) -> Any:
    """An answer that isn't streamed."""
    body = {**BODY, "stream": False}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=4 * PATIENCE)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_abort_ends_answers_as_they_are_and_later_requests_wait(running: Server) -> None:
    alone = Stream(running.url, max_tokens=120)
    alone.join()
    stream = begun_and_paused(running)
    with ThreadPoolExecutor(1) as pool:
        unstreamed = pool.submit(whole, running)
        wait_until(lambda: running.get("/status")[1]["engines"][0]["waiting"] == 1)
        assert said(running, "pause") == {"status": "paused"}
        answer = unstreamed.result()
    stream.join(PATIENCE)
    assert (stream.finish, stream.error) == ("abort", "")
    assert 0 < len(stream.text) < len(alone.text)
    assert alone.text.startswith(stream.text)
    assert [(each["text"], each["finish_reason"]) for each in answer["choices"]] == [("", "abort")]
    assert answer["usage"]["completion_tokens"] == 0
    late = Stream(running.url, max_tokens=3)
    late.join(1.0)
    assert not late.text
    said(running, "resume")
    late.join(PATIENCE)
    assert late.finish == "length"


def test_in_the_library(tiny_model: str) -> None:
    async def run() -> list[str]:
        params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
        async with AsyncLLM(tiny_model) as llm:

            async def generate(name: str) -> str:
                text = ""
                async for output in llm.generate("abc", params, request_id=name):
                    text = output.outputs[0].text
                return text

            alone = await generate("a")
            task = asyncio.create_task(generate("b"))
            await asyncio.sleep(0)
            await llm.pause_generation(mode="keep")
            assert await llm.is_paused()
            await llm.resume_generation()
            return [alone, await task]

    alone, kept = asyncio.run(run())
    assert alone == kept
