"""A preparer that dies, is stopped or takes too much at any point: its request fails with an error
that says why or is done again, and nothing else notices."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.client.ready_params import ready_params
from penstock.config.settings import GatewayConfig
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.live_gateway import LiveGateway
from tests.gateway.preparing.fated_tokenizer import FatedTokenizer

pytestmark = pytest.mark.timeout(300)

LONG = "word " * 2000
"""A text that isn't tokenised by the gateway itself."""
MANY = [f"{place:090d}" for place in range(100)]
"""Prompts that together are more than the gateway prepares itself."""
SECONDS = 0.5
"""Processor seconds that a body may take here."""


class FatedGateway:
    """A gateway whose preparers meet fates. times: how often one comes."""

    def __init__(self, folder: Path, times: int) -> None:
        self.met = folder / "met"
        self.engine = FakeEngineClient()
        text = self.engine.text
        tokenizer = FatedTokenizer(self.met, times)
        self.engine.text = type(text)(tokenizer, text.template)
        config = GatewayConfig(max_body_seconds=SECONDS, max_body_memory_mib=512)
        self.live = LiveGateway(self.engine, config)

    def post(self, prompt: str | list[str], **fields: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {fields.pop('tenant', 'somebody')}"}
        body = {"prompt": prompt, "max_tokens": 4, "seed": 1, **fields}
        return httpx.post(
            f"{self.live.url}/v1/completions", json=body, headers=headers, timeout=120
        )

    def fates(self) -> int:
        """How many have come."""
        return self.met.stat().st_size if self.met.exists() else 0

    def wait_for(self, state: Callable[[], bool]) -> None:
        until = time.monotonic() + 60
        while not state():
            if time.monotonic() >= until:
                raise TimeoutError
            time.sleep(0.01)


@pytest.fixture
def fated(tmp_path: Path) -> Iterator[Callable[[int], FatedGateway]]:
    made: list[FatedGateway] = []

    def make(times: int = 1_000_000) -> FatedGateway:
        gateway = FatedGateway(tmp_path, times)
        gateway.live.__enter__()
        made.append(gateway)
        return gateway

    yield make
    for each in made:
        each.live.__exit__(None, None, None)


def test_a_large_body_is_answered_as_a_small_one_is(fated: Callable[..., FatedGateway]) -> None:
    """What is submitted is the same, whoever prepared it."""
    gateway = fated()
    fields = {"stop": ["x"], "logit_bias": {"65": 1.5}, "bad_words": ["ab"], "logprobs": 2}
    large = gateway.post(LONG, **fields)
    assert large.status_code == 400
    assert "context" in large.json()["error"]["message"]
    replies = gateway.post(MANY, **fields)
    assert replies.status_code == 200, replies.text
    elsewhere = gateway.engine.submitted[-100:]
    ready = gateway.engine.ready[-100:]
    one = gateway.post(MANY[5], **fields)
    assert one.status_code == 200
    ids, params, _ = gateway.engine.submitted[-1]
    assert elsewhere[5][0] == ids == list(MANY[5].encode())
    tokenizer, limits = gateway.engine.text.tokenizer, gateway.engine.welcome.limits
    assert ready[5] == ready_params(params, tokenizer, limits)
    assert elsewhere[5][1].stop == params.stop
    assert elsewhere[5][1].max_tokens == params.max_tokens
    assert replies.json()["choices"][5]["text"] == one.json()["choices"][0]["text"]


@pytest.mark.parametrize("fate", ["<kill>", "<stop>"])
def test_it_is_done_again_or_fails_with_a_reason(
    fated: Callable[..., FatedGateway], fate: str
) -> None:
    gateway = fated(1)
    reply = gateway.post([fate, *MANY])
    if fate == "<kill>":
        assert reply.status_code == 200, reply.text
    else:
        assert reply.status_code == 503
        assert "stood still" in reply.json()["error"]["message"]
    assert gateway.fates() >= 1
    again = gateway.post(MANY)
    assert again.status_code == 200


def test_one_whose_preparers_always_die_is_refused(fated: Callable[..., FatedGateway]) -> None:
    gateway = fated()
    reply = gateway.post(["<kill>", *MANY])
    assert reply.status_code == 503
    assert "died, and so did the next ones" in reply.json()["error"]["message"]
    assert gateway.fates() == 3


@pytest.mark.parametrize(
    ("fate", "says"),
    [("<spin>", "0.5 s of a processor"), ("<crash>", "brought the process down")],
)
def test_what_takes_too_much_is_refused_with_its_largest_field(
    fated: Callable[..., FatedGateway], fate: str, says: str
) -> None:
    gateway = fated()
    reply = gateway.post([fate, *MANY], user="u" * 50)
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert says in error["message"]
    assert 'its largest field is "prompt"' in error["message"]
    assert error["param"] == "prompt"
    assert gateway.fates() == 1, "it isn't tried again"


def test_too_much_memory_is_refused(fated: Callable[..., FatedGateway]) -> None:
    gateway = fated()
    reply = gateway.post(["<swell>", *MANY])
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert "more than 512 MiB of memory" in error["message"]
    assert 'its largest field is "prompt"' in error["message"]
    assert gateway.fates() == 1, "it isn't tried again"
    assert gateway.post(MANY).status_code == 200


def test_another_tenants_body_waits_for_none(fated: Callable[..., FatedGateway]) -> None:
    """One tenant's preparer waits for ever; another's body, and a small one, are answered."""
    gateway = fated()
    replies: list[httpx.Response] = []
    hog = threading.Thread(
        target=lambda: replies.append(gateway.post(["<wait>", *MANY], tenant="hog"))
    )
    hog.start()
    gateway.wait_for(lambda: gateway.fates() == 1)
    other = gateway.post(MANY, tenant="other")
    small = gateway.post("q", tenant="hog")
    assert (other.status_code, small.status_code) == (200, 200)
    assert not replies
    hog.join(120)
    assert replies[0].status_code == 503, "it stood still"


def test_the_process_that_forks_may_die(fated: Callable[..., FatedGateway]) -> None:
    gateway = fated()
    assert gateway.post(MANY).status_code == 200
    forks = gateway.live.service.preparers.forks
    assert forks is not None
    os.kill(forks.pid, signal.SIGKILL)
    gateway.wait_for(lambda: not forks.is_open)
    assert gateway.post(MANY).status_code == 200


def test_the_process_that_forks_may_be_stopped(fated: Callable[..., FatedGateway]) -> None:
    gateway = fated()
    assert gateway.post(MANY).status_code == 200
    preparers = gateway.live.service.preparers
    forks = preparers.forks
    assert forks is not None
    os.kill(forks.pid, signal.SIGSTOP)
    for pid in preparers.pids:
        os.kill(pid, signal.SIGKILL)
    assert gateway.post(MANY).status_code == 200
    assert preparers.forks is not forks


def test_a_client_that_leaves_takes_its_preparer_along(
    fated: Callable[..., FatedGateway],
) -> None:
    gateway = fated()
    with gateway.live.connect() as connection:
        body = json.dumps({"prompt": ["<wait>", *MANY], "max_tokens": 1}).encode()
        connection.post("/v1/completions", body, "content-type: application/json")
        gateway.wait_for(lambda: gateway.fates() == 1)
        busy = gateway.live.service.preparers.count
        assert busy == 1
    gateway.wait_for(lambda: gateway.live.service.preparers.count == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_preparer_notes_stands_in_the_replys_header(
    fated: Callable[..., FatedGateway], stream: bool
) -> None:
    gateway = fated()
    turns = [{"role": role, "content": LONG[:900]} for role in ("user", "assistant") * 20]
    body = {"input": [*turns, {"role": "user", "content": "Q"}], "stream": stream}
    url = f"{gateway.live.url}/v1/responses"
    reply = httpx.post(url, json={**body, "truncation": "auto"}, timeout=120)
    assert reply.status_code == 200, reply.text
    assert "were left out" in reply.headers["x-penstock-warning"]


def test_what_became_of_bodies_is_counted(fated: Callable[..., FatedGateway]) -> None:
    gateway = fated()
    for fate in ("<kill>", "<spin>", "<swell>", "fine"):
        gateway.post([fate, *MANY])
    gateway.post("small")
    page = httpx.get(f"{gateway.live.url}/metrics", timeout=60).text
    found = dict(re.findall(r'preparations_total\{.*outcome="(\w+)"\} (\S+)', page))
    assert found == {
        "done": "1.0",
        "too_dear": "1.0",
        "out_of_memory": "1.0",
        "crashed": "0.0",
        "died": "3.0",
        "frozen": "0.0",
    }
    assert preparers(page) == {"busy": 0, "idle": 1, "waiting": 0}


def preparers(page: str) -> dict[str, int]:
    """How many processes are in each state, and how many bodies wait for one."""
    found = re.findall(r'penstock:preparers\{.*state="(\w+)"\} (\d+)', page)
    found += re.findall(r"penstock:(waiting)_bodies\{.*\} (\d+)", page)
    return {state: int(count) for state, count in found}


def test_processes_at_work_and_bodies_that_wait_are_shown(
    fated: Callable[..., FatedGateway],
) -> None:
    gateway = fated(1)
    asking = [
        threading.Thread(target=gateway.post, args=(prompt,), kwargs={"tenant": "one"})
        for prompt in (["<wait>", *MANY], MANY)
    ]
    asking[0].start()
    gateway.wait_for(lambda: gateway.fates() == 1)
    asking[1].start()

    def page() -> str:
        return httpx.get(f"{gateway.live.url}/metrics", timeout=60).text

    gateway.wait_for(lambda: preparers(page()) == {"busy": 1, "idle": 0, "waiting": 1})
    for thread in asking:
        thread.join(120)
    gateway.wait_for(lambda: preparers(page()) == {"busy": 0, "idle": 1, "waiting": 0})
