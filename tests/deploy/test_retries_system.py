"""A request that a proxy or an SDK sends again, before the first byte of its answer, is computed
once if it has an Idempotency-Key. The answer is the same either way."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from testing.serving import PATIENCE, wait_until
from testing.words import text
from tests.deploy.gateway_pair import PATH, Pair, body, generated, settled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOKENS = 120


def by_haproxy(pair: Pair, headers: dict[str, str]) -> str:
    """Sent again by haproxy alone."""
    url = pair.balancer.url + PATH
    asked = body(7, TOKENS, stream=False)
    reply = httpx.post(url, json=asked, headers=headers, timeout=PATIENCE)
    assert reply.status_code == 200, reply.text
    said: str = reply.json()["choices"][0]["text"]
    return said


def by_the_sdk(pair: Pair, headers: dict[str, str]) -> str:
    """Sent again by OpenAI's SDK, which has no key of its own, to the gateway that comes back."""
    url = f"http://{pair.addresses[0]}/v1"
    with openai.OpenAI(base_url=url, api_key="none", timeout=PATIENCE, max_retries=30) as sdk:
        model = next(iter(sdk.models.list())).id
        reply = sdk.completions.create(
            model=model,
            prompt="Say it:",
            max_tokens=TOKENS,
            seed=7,
            extra_body={"ignore_eos": True},
            extra_headers=headers,
        )
    return reply.choices[0].text


@pytest.mark.parametrize("send", [by_haproxy, by_the_sdk])
def test_what_is_sent_again_with_a_key_is_computed_once(
    pair: Pair, send: Callable[[Pair, dict[str, str]], str]
) -> None:
    """Its gateway is killed before the answer's first byte. Without a key the answer is the same,
    and computed again."""
    for headers in ({"Idempotency-Key": f"{send.__name__} {time.monotonic_ns()}"}, {}):
        before = settled(lambda: generated(pair))
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(send, pair, headers)
            wait_until(lambda n=before: generated(pair) > n)
            killed = 0 if send is by_the_sdk else pair.busy()[0]
            pair.end(killed, signal.SIGKILL)
            pair.start(killed)
            wait_until(lambda: pair.states() == ["UP", "UP"], message=pair.states)
            assert reading.result(PATIENCE) == text(7, TOKENS)
        count = settled(lambda: generated(pair)) - before
        assert (count == TOKENS) == bool(headers), count
