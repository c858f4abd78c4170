"""Streams that outlive the processes under them: the answer equals the undisturbed one."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai import OpenAI

from penstock import LLM, SamplingParams
from testing.processes import freeze
from testing.serving import PATIENCE, Server, wait_until

pytestmark = [pytest.mark.timeout(600)]

BODY = {
    "model": "",
    "prompt": "The history of the city of Paris begins",
    "max_tokens": 48,
    "temperature": 0.8,
    "seed": 5,
    "extra_body": {"ignore_eos": True},
}


def stream_text(url: str, on_chunk=lambda count: None) -> str:
    with OpenAI(base_url=f"{url}/v1", api_key="none", timeout=240, max_retries=0) as client:
        model = client.models.list().data[0].id
        text = ""
        chunks = client.completions.create(**{**BODY, "model": model}, stream=True)
        for count, chunk in enumerate(chunks):
            text += chunk.choices[0].text if chunk.choices else ""
            on_chunk(count)
        return text


@pytest.fixture(scope="module")
def started():
    """What is killed comes back: all tests share it."""
    with Server("--max-model-len", "1024", "--num-kv-blocks", "256") as server:
        yield server


@pytest.fixture
def own_server(started):
    wait_until(started.ready)
    return started


@pytest.fixture(scope="module")
def undisturbed(started):
    return stream_text(started.url)


@pytest.mark.parametrize("victim", ["worker 0", "engine"])
def test_a_stream_goes_on_when_a_process_is_killed_under_it(own_server, undisturbed, victim):
    first, boot = own_server.child(victim), own_server.get("/status")[1]["boot"]

    def kill_once(count: int) -> None:
        if count == 8:
            os.kill(first, signal.SIGKILL)

    assert stream_text(own_server.url, kill_once) == undisturbed
    # Where the stream was over before the blow, its successor may be on its way still.
    wait_until(lambda: own_server.children().get(f"penstock: {victim}") not in (None, first))
    if victim == "engine":
        wait_until(lambda: own_server.engine_replaced(boot))


def outlives_both(server, asked):
    """What is asked while each is killed in turn comes out like the undisturbed."""

    def steps() -> int:
        return int(server.get("/status")[1]["engine"]["steps"])

    undisturbed = asked()
    for victim in ("engine", "worker 0"):
        first, before = server.child(victim), steps()
        with ThreadPoolExecutor(1) as pool:
            disturbed = pool.submit(asked)
            wait_until(lambda before=before: steps() >= before + 12)
            assert not disturbed.done(), "too few tokens: it was over before the blow"
            os.kill(first, signal.SIGKILL)
            assert disturbed.result(240) == undisturbed, victim
        wait_until(
            lambda gone=(None, first), title=f"penstock: {victim}": (
                server.children().get(title) not in gone
            )
        )
        wait_until(server.ready)


def test_tokens_that_a_killed_process_held_come_out_the_same(own_server):
    """Nobody reads the library's tokens as they come: the worker goes on by itself, and the engine
    core holds what it gave."""
    (socket,) = own_server.runtime_base.rglob("frontend*")
    params = SamplingParams(max_tokens=400, temperature=0.8, seed=5, ignore_eos=True)
    with LLM(engine_endpoint=f"ipc://{socket}") as llm:

        def tokens() -> list[int]:
            (output,) = llm.generate(BODY["prompt"], params, use_tqdm=False)
            return output.outputs[0].token_ids

        outlives_both(own_server, tokens)


def test_a_reply_that_is_not_streamed_comes_out_the_same(own_server):
    """A gateway's tokens are read by nobody before the end either."""
    body = {"prompt": BODY["prompt"], "max_tokens": 400, "temperature": 0.8, "seed": 5}

    def reply() -> str:
        status, answer = own_server.post("/v1/completions", {**body, "ignore_eos": True})
        assert status == 200, answer
        assert answer["usage"]["completion_tokens"] == 400
        return answer["choices"][0]["text"]

    outlives_both(own_server, reply)


def test_a_frozen_worker_is_noticed_and_the_stream_goes_on(own_server, undisturbed):
    worker = own_server.child("worker 0")
    seen_unready = threading.Event()

    def freeze_for_a_while(count: int) -> None:
        if count == 8:
            freeze(worker)
            thawing.start()

    def thaw() -> None:
        deadline = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < deadline:
                if httpx.get(f"{own_server.url}/health/ready", timeout=PATIENCE).status_code == 503:
                    seen_unready.set()
                    return
                time.sleep(0.1)
        finally:
            os.kill(worker, signal.SIGCONT)

    thawing = threading.Thread(target=thaw, daemon=True)
    assert stream_text(own_server.url, freeze_for_a_while) == undisturbed
    thawing.join(2 * PATIENCE)
    assert seen_unready.is_set()
