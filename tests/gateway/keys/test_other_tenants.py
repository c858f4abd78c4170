"""What one tenant has stored isn't there for another one, at whichever endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from tests.gateway.batches.storing import Storing, line, storing
from tests.gateway.fake_engine import MODEL, FakeEngineClient, say
from tests.gateway.keyring import ALICE, BOB, bearer, key, write
from tests.gateway.keys.test_access import operations

FILES, BATCHES, RESPONSES = "/v1/files", "/v1/batches", "/v1/responses"
MESSAGES, CONVERSATIONS = "/v1/messages/batches", "/v1/conversations"
STORED = [
    each
    for each in operations()
    if "{" in each.path and "{name:path}" not in each.path and each.access != "admin"
]
LISTS = [FILES, BATCHES, MESSAGES]


Sent = Callable[[str], dict[str, str]]


def named(secret: str) -> dict[str, str]:
    return {"x-api-key": secret}


@pytest.fixture(params=["keys", "bearer keys that nobody knows", "x-api-keys that nobody knows"])
def kind(request: pytest.FixtureRequest) -> str:
    """Whether the server has keys, and where clients send theirs."""
    return str(request.param)


@pytest.fixture
def sent(kind: str) -> Sent:
    """Headers that bring a key."""
    return named if kind.startswith("x-") else bearer


@pytest.fixture
async def gateway(
    tmp_path: Path, engine: FakeEngineClient, kind: str, sent: Sent
) -> AsyncIterator[Storing]:
    engine.script = say("Yes.")
    config = GatewayConfig()
    if kind == "keys":
        config = GatewayConfig(api_keys=write(tmp_path / "keys.json", key(ALICE), key(BOB)))
    data = tmp_path / "data"
    async with storing(data, engine, config=config, stored_response_hours=1) as gateway:
        yield gateway


async def stored(gateway: Storing, sent: Sent) -> dict[str, str]:
    """Something of Alice's at each path, by its id."""

    async def made(path: str, **body: Any) -> str:
        answer = await gateway.http.post(path, json=body, headers=sent(ALICE))
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    file = (await gateway.upload(line("1"), sent(ALICE))).json()["id"]
    message = {"role": "user", "content": "One?"}
    params = {"model": MODEL, "max_tokens": 2, "messages": [message]}
    return {
        FILES: file,
        BATCHES: await made(
            BATCHES, input_file_id=file, endpoint="/v1/completions", completion_window="24h"
        ),
        RESPONSES: await made(RESPONSES, input="One?", background=True),
        CONVERSATIONS: await made(CONVERSATIONS),
        MESSAGES: await made(MESSAGES, requests=[{"custom_id": "1", "params": params}]),
    }


def says(answer: httpx.Response, id: str) -> tuple[int, str]:
    """Without the ids that are of a request."""
    told = answer.text.replace(id, "ID")
    own = answer.headers["x-request-id"]
    return answer.status_code, told.replace(own, "REQUEST")


@pytest.mark.parametrize("operation", STORED, ids=lambda each: f"{each.method} {each.path}")
async def test_it_is_as_if_it_had_never_been(gateway: Storing, sent: Sent, operation: Any) -> None:
    place = operation.path.partition("/{")[0]
    own = (await stored(gateway, sent))[place]
    unknown = own[:-8] + "0" * 8

    async def asked(secret: str, id: str) -> httpx.Response:
        path = f"{place}/{id}{operation.path.partition('}')[2]}"
        headers = sent(secret) | {"content-type": "application/json"}
        return await gateway.http.request(operation.method, path, headers=headers)

    told = says(await asked(BOB, own), own)
    assert told == says(await asked(BOB, unknown), unknown)
    assert told[0] == 404
    assert says(await asked(ALICE, own), own) != told


@pytest.mark.parametrize("place", LISTS)
async def test_it_is_on_no_list(gateway: Storing, sent: Sent, place: str) -> None:
    own = (await stored(gateway, sent))[place]

    async def listed(secret: str, **query: str) -> httpx.Response:
        return await gateway.http.get(place, params=query, headers=sent(secret))

    assert own in [each["id"] for each in (await listed(ALICE)).json()["data"]]
    assert (await listed(BOB)).json()["data"] == []
    cursor, unknown = "after_id" if place == MESSAGES else "after", own[:-8] + "0" * 8
    behind = says(await listed(BOB, **{cursor: own}), own)
    assert behind == says(await listed(BOB, **{cursor: unknown}), unknown)


USES: dict[str, Callable[[dict[str, str]], tuple[str, dict[str, Any]]]] = {
    "a batch of a file": lambda own: (
        BATCHES,
        {
            "input_file_id": own[FILES],
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        },
    ),
    "a response that goes on": lambda own: (
        RESPONSES,
        {"input": "Two?", "previous_response_id": own[RESPONSES]},
    ),
    "a response in a conversation": lambda own: (
        RESPONSES,
        {"input": "Two?", "conversation": own[CONVERSATIONS]},
    ),
    "the conversation's tokens": lambda own: (
        f"{RESPONSES}/input_tokens",
        {"input": "Two?", "conversation": own[CONVERSATIONS]},
    ),
    "its tokens": lambda own: (
        f"{RESPONSES}/input_tokens",
        {"input": "Two?", "previous_response_id": own[RESPONSES]},
    ),
}


@pytest.mark.parametrize("use", USES)
async def test_nothing_can_be_made_of_it(gateway: Storing, sent: Sent, use: str) -> None:
    path, body = USES[use](await stored(gateway, sent))
    answer = await gateway.http.post(path, json=body, headers=sent(BOB))
    assert answer.status_code == 404, answer.text


async def test_an_answer_of_the_same_id_is_its_own(gateway: Storing, sent: Sent) -> None:
    """A client may choose the id of a response."""
    body = {"input": "One?", "request_id": "same", "store": True}
    ids = []
    for secret in (ALICE, BOB):
        answer = await gateway.http.post(RESPONSES, json=body, headers=sent(secret))
        assert answer.status_code == 200, answer.text
        ids.append(answer.json()["id"])
    assert ids[0] == ids[1]
    gone = await gateway.http.delete(f"{RESPONSES}/{ids[0]}", headers=sent(BOB))
    assert gone.status_code == 200
    kept = await gateway.http.get(f"{RESPONSES}/{ids[0]}", headers=sent(ALICE))
    assert kept.status_code == 200
