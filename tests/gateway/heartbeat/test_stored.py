"""However much is stored of a response and of the conversation before it, the event loop stands
still for no more than 50 ms while it is kept, gone on from, listed or told again."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import StorageSettings
from penstock_gateway.responses.request import LOGPROBS
from penstock_gateway.storage.store import Store
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.heartbeat.beaten import PATIENCE, BeatenGateway, beaten
from tests.gateway.heartbeat.beating import collecting_as_a_gateway, latest
from tests.gateway.heartbeat.engines import GeneratingEngine, TellingEngine

pytestmark = pytest.mark.timeout(300)

URL = "/v1/responses"
MANY = 8192
"""Tokens of an answer: with 20 log-probabilities each, 16 MB of JSON."""
LINKS, MESSAGES = 12, 1200
"""Responses of a conversation, and messages of each: together nearly as many tokens as the context
has."""
PARTS = 8000
"""Without text: 22 units each."""


@contextmanager
def storing(engine: FakeEngineClient, folder: Path) -> Iterator[BeatenGateway]:
    store = Store(StorageSettings(stored_response_hours=1), str(folder))
    with collecting_as_a_gateway(), beaten(engine, store) as found:
        yield found
    store.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeatenGateway]:
    """Its answers are long."""
    with storing(TellingEngine(MANY), tmp_path_factory.mktemp("stored")) as found:
        yield found


@pytest.fixture(scope="module")
def terse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeatenGateway]:
    with storing(GeneratingEngine(), tmp_path_factory.mktemp("terse")) as found:
        yield found


def ask(gateway: BeatenGateway, body: dict[str, Any]) -> dict[str, Any]:
    status, found = gateway.answer(URL, json.dumps(body).encode())
    assert status == 200, found[:1000]
    return dict(json.loads(found))


def get(gateway: BeatenGateway, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=PATIENCE)
    try:
        connection.request("GET", f"{URL}/{path}")
        answer = connection.getresponse()
        found = answer.read()
        assert answer.status == 200, found[:1000]
        return found
    finally:
        connection.close()


LARGE = {"input": "Hi", "include": [LOGPROBS], "top_logprobs": 20, "max_output_tokens": MANY}


@pytest.fixture(scope="module")
def large(gateway: BeatenGateway) -> str:
    """The id of a response that shows much of its tokens."""
    return str(ask(gateway, LARGE)["id"])


def conversation(gateway: BeatenGateway, links: int, items: list[dict[str, Any]]) -> str:
    """The id of the last response of one whose links bring these items each."""
    id = None
    for _ in range(links):
        body = {"input": items, "max_output_tokens": 1, "previous_response_id": id}
        id = str(ask(gateway, body)["id"])
    return str(id)


@pytest.fixture(scope="module")
def long(terse: BeatenGateway) -> str:
    return conversation(terse, LINKS, [{"role": "user", "content": "a"}] * MESSAGES)


@pytest.mark.parametrize("stream", [False, True])
def test_keeping_one_holds_nothing_up(gateway: BeatenGateway, stream: bool) -> None:
    body = json.dumps({**LARGE, "stream": stream}).encode()
    (status, found), late = gateway.watched(lambda: gateway.answer(URL, body))
    assert status == 200
    assert len(found) > 7_000_000
    assert late <= latest()


@pytest.mark.parametrize("query", ["", "?stream=true", "/input_items?limit=100"])
def test_telling_one_again_holds_nothing_up(gateway: BeatenGateway, large: str, query: str) -> None:
    _, late = gateway.watched(lambda: get(gateway, large + query))
    assert late <= latest()


@pytest.fixture(params=["large", "long"])
def known(request: pytest.FixtureRequest) -> tuple[BeatenGateway, str]:
    """A gateway, and the id of what it stores: much of a response, or many links."""
    named = {"large": "gateway", "long": "terse"}[request.param]
    return request.getfixturevalue(named), request.getfixturevalue(request.param)


def test_going_on_from_one_holds_nothing_up(known: tuple[BeatenGateway, str]) -> None:
    gateway, id = known
    body = {"input": "Hi", "max_output_tokens": 1, "previous_response_id": id, "store": False}
    _, late = gateway.watched(lambda: ask(gateway, body))
    assert late <= latest()


def test_listing_what_it_answers_holds_nothing_up(known: tuple[BeatenGateway, str]) -> None:
    gateway, id = known
    body = {"input": "Hi", "max_output_tokens": 1, "previous_response_id": id}
    last = ask(gateway, body)["id"]
    page, late = gateway.watched(lambda: get(gateway, f"{last}/input_items?limit=100&order=asc"))
    assert late <= latest()
    first = json.loads(page)["data"][0]["id"]
    query = f"{last}/input_items?limit=1&order=desc&after={first}"  # It is the last one then.
    found, late = gateway.watched(lambda: get(gateway, query))
    assert json.loads(found)["data"] == []
    assert late <= latest()


def test_a_conversation_of_more_than_a_request_may_hold_is_refused(terse: BeatenGateway) -> None:
    """Each link by itself was accepted."""
    parts = [{"type": "input_text", "text": ""}] * PARTS
    id = conversation(terse, 3, [{"role": "user", "content": parts}])
    body = json.dumps({"input": "Hi", "previous_response_id": id}).encode()
    (status, found), late = terse.watched(lambda: terse.answer(URL, body))
    error = json.loads(found)["error"]
    assert (status, error["param"]) == (400, "previous_response_id")
    assert "holds too many values" in error["message"]
    assert late <= latest()
