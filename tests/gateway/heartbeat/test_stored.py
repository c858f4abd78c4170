"""However much is stored of a response and of the conversation before it, the event loop stands
still for no more than 50 ms while it is kept, gone on from, listed or told again."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.config.settings import StorageSettings
from penstock_gateway.responses.request import LOGPROBS
from penstock_gateway.storage.store import Store
from tests.gateway.heartbeat.beaten import PATIENCE, BeatenGateway, beaten
from tests.gateway.heartbeat.beating import collecting_as_a_gateway, latest
from tests.gateway.heartbeat.engines import TellingEngine

pytestmark = pytest.mark.timeout(300)

URL = "/v1/responses"
MANY = 8192
"""Tokens of an answer: with 20 log-probabilities each, 16 MB of JSON."""
LINKS = 12
MESSAGES = 1500
"""Of a link: 30,000 units, so 12 links have fewer than a request may."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeatenGateway]:
    folder = tmp_path_factory.mktemp("stored")
    settings = StorageSettings(data_dir=str(folder), stored_response_hours=1)
    store = Store(settings, str(folder))
    with collecting_as_a_gateway(), beaten(TellingEngine(MANY), store) as found:
        yield found
    store.close()


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


@pytest.fixture(scope="module")
def long(gateway: BeatenGateway) -> str:
    """The id of the last response of a long conversation."""
    id = None
    message = {"role": "user", "content": "a"}
    for _ in range(LINKS):
        body = {"input": [message] * MESSAGES, "max_output_tokens": 1, "previous_response_id": id}
        id = str(ask(gateway, body)["id"])
    return str(id)


@pytest.mark.parametrize("stream", [False, True])
def test_keeping_one_holds_nothing_up(gateway: BeatenGateway, stream: bool) -> None:
    body = json.dumps({**LARGE, "stream": stream}).encode()
    (status, found), late = gateway.watched(lambda: gateway.answer(URL, body))
    assert status == 200
    assert len(found) > 10_000_000
    assert late <= latest()


@pytest.mark.parametrize("query", ["", "?stream=true", "/input_items?limit=100"])
def test_telling_one_again_holds_nothing_up(gateway: BeatenGateway, large: str, query: str) -> None:
    _, late = gateway.watched(lambda: get(gateway, large + query))
    assert late <= latest()


@pytest.mark.parametrize("which", ["large", "long"])
def test_going_on_from_one_holds_nothing_up(
    gateway: BeatenGateway, which: str, request: pytest.FixtureRequest
) -> None:
    id = request.getfixturevalue(which)
    body = {"input": "Hi", "max_output_tokens": 1, "previous_response_id": id, "store": False}
    _, late = gateway.watched(lambda: ask(gateway, body))
    assert late <= latest()


@pytest.mark.parametrize("which", ["large", "long"])
def test_listing_what_it_answers_holds_nothing_up(
    gateway: BeatenGateway, which: str, request: pytest.FixtureRequest
) -> None:
    """The last link of a long conversation, too: its items are behind all the others."""
    id = request.getfixturevalue(which)
    body = {"input": "Hi", "max_output_tokens": 1, "previous_response_id": id}
    last = ask(gateway, body)["id"]
    page, late = gateway.watched(lambda: get(gateway, f"{last}/input_items?limit=100&order=asc"))
    assert late <= latest()
    first = json.loads(page)["data"][0]
    _, late = gateway.watched(
        lambda: get(gateway, f"{last}/input_items?limit=1&order=desc&after={first['id']}")
    )
    assert late <= latest()


def test_a_conversation_of_more_than_a_request_may_hold_is_refused(gateway: BeatenGateway) -> None:
    item = {"role": "user", "content": "a"}
    id = None
    for _ in range(2):
        body = {"input": [item] * 12_000, "max_output_tokens": 1, "previous_response_id": id}
        id = ask(gateway, body)["id"]
    third = {"input": "Hi", "previous_response_id": id}
    (status, found), late = gateway.watched(lambda: gateway.answer(URL, json.dumps(third).encode()))
    assert status == 400
    assert "holds too many values" in json.loads(found)["error"]["message"]
    assert late <= latest()
