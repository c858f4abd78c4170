"""A tower whose pass over one picture takes several steps, through a whole system."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from testing.serving import PATIENCE, Server, wait_until
from testing.trained.seeing.hub_folder import Shape, config, processor, save, tokenizer
from testing.trained.seeing.pictures import EVERY, draw
from tests.gateway.media import data_uri, image, text
from tests.shared.media.pictures import saved

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SHAPE = Shape(
    side=224, patch=14, width=256, inner=704, tower_layers=6, layers=2, heads=4, kv_heads=2
)
FLAGS = ("--max-model-len", "512", "--num-kv-blocks", "512", "--dtype", "float32")
STREAMS = 3


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    import torch
    from transformers import LlavaForConditionalGeneration

    folder = tmp_path_factory.mktemp("tall-llava")
    torch.manual_seed(1)
    ours = processor(tokenizer(), SHAPE)
    save(LlavaForConditionalGeneration(config(ours.tokenizer, SHAPE)), ours, folder)
    with Server(str(folder), *FLAGS) as server:
        yield server


def ask(server: Server, number: int, salt: str) -> dict[str, Any]:
    """What is said of a picture, with the time of its steps. A salt of its own shares nothing."""
    picture = saved(draw(EVERY[number], 900 + number, 224, 224), "PNG")
    content = [image(data_uri(picture)), text("What is it?")]
    body = {
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 12,
        "ignore_eos": True,
        "return_token_ids": True,
        "logprobs": True,
        "cache_salt": salt,
    }
    headers = {"x-penstock-timeline": "1"}
    url = f"{server.url}/v1/chat/completions"
    reply = httpx.post(url, json=body, headers=headers, timeout=240)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def write(server: Server, number: int) -> list[int]:
    """A text that goes on for a while."""
    body = {"prompt": f"Text {number}", "max_tokens": 250, "ignore_eos": True, "temperature": 0}
    url = f"{server.url}/v1/completions"
    reply = httpx.post(url, json={**body, "return_token_ids": True}, timeout=240)
    assert reply.status_code == 200, reply.text
    ids: list[int] = reply.json()["choices"][0]["token_ids"]
    return ids


def answer(reply: dict[str, Any]) -> tuple[list[int], Any]:
    return reply["choices"][0]["token_ids"], reply["choices"][0]["logprobs"]


def test_answers_are_the_same_however_an_encoding_is_divided(seeing: Server) -> None:
    alone = [answer(ask(seeing, number, "alone")) for number in range(3)]
    texts = [write(seeing, number) for number in range(STREAMS)]
    with ThreadPoolExecutor(8) as crowd:
        streams = [crowd.submit(write, seeing, number) for number in range(STREAMS)]
        beside = list(crowd.map(lambda number: ask(seeing, number, "beside"), range(3)))
        assert [answer(reply) for reply in beside] == alone
        assert [stream.result() for stream in streams] == texts


@pytest.mark.parametrize("victim", ["worker 0", "engine"])
def test_answers_are_the_same_when_a_process_dies_of_something_else(
    seeing: Server, victim: str
) -> None:
    """It is killed while pictures are being encoded, or about to be, or just were."""
    wait_until(seeing.ready)
    alone = [answer(ask(seeing, number, "alone")) for number in range(3)]
    first = seeing.child(victim)
    with ThreadPoolExecutor(3) as crowd:
        asked: list[Future[dict[str, Any]]] = [
            crowd.submit(ask, seeing, number, f"killed {victim}") for number in range(3)
        ]
        wait_until(lambda: _waiting(seeing) or any(each.done() for each in asked))
        os.kill(first, signal.SIGKILL)
        assert [answer(each.result()) for each in asked] == alone
    wait_until(lambda: seeing.children().get(f"penstock: {victim}") not in (None, first))


def _waiting(server: Server) -> bool:
    """Whether a request has come."""
    lines = httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text.splitlines()
    name = "penstock:gateway_open_requests"
    return any(line.startswith(name) and float(line.split()[-1]) > 0 for line in lines)
