"""Responses that are kept: what a request goes on from, whose they are, and when they end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from penstock.config.settings import GatewayConfig, StorageSettings
from penstock.errors import StartupError
from penstock_gateway.app import create_app
from penstock_gateway.storage.store import Store
from tests.gateway.batches.storing import Storing, storing
from tests.gateway.fake_engine import FakeEngineClient, say
from tests.gateway.responses.test_responses import events_of

URL = "/v1/responses"
ITEM: TypeAdapter[Any] = TypeAdapter(ResponseItem)


@pytest.fixture
async def gateway(tmp_path: Path, engine: FakeEngineClient) -> AsyncIterator[Storing]:
    engine.script = say("Yes.")
    async with storing(
        tmp_path, engine, stored_response_hours=1, max_stored_responses=5
    ) as gateway:
        yield gateway


async def ask(gateway: Storing, said: Any, **more: Any) -> dict[str, Any]:
    headers = more.pop("headers", None)
    answer = await gateway.http.post(URL, json={"input": said, **more}, headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def last_prompt(gateway: Storing) -> str:
    return bytes(gateway.engine.submitted[-1][0]).decode()


async def test_a_conversation_goes_on(gateway: Storing) -> None:
    first = await ask(gateway, "One?", instructions="Be brief.")
    assert first["store"]
    assert first["previous_response_id"] is None
    second = await ask(
        gateway, [{"role": "user", "content": "Two?"}], previous_response_id=first["id"]
    )
    assert second["previous_response_id"] == first["id"]
    await ask(gateway, "Three?", previous_response_id=second["id"], instructions="Be wise.")
    said = "user: One?\nassistant: Yes.0\nuser: Two?\nassistant: Yes.0\nuser: Three?\nassistant:"
    # Instructions are a request's own.
    assert last_prompt(gateway) == f"system: Be wise.\n{said}"
    # It forks, too.
    await ask(gateway, "Else?", previous_response_id=first["id"])
    assert last_prompt(gateway) == "user: One?\nassistant: Yes.0\nuser: Else?\nassistant:"


async def test_it_is_as_if_the_whole_had_been_sent(gateway: Storing) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    first = await ask(gateway, [{"role": "user", "content": "Call."}, call])
    told = [{"type": "function_call_output", "call_id": "c1", "output": "42"}]
    await ask(gateway, told, previous_response_id=first["id"])
    gone_on = gateway.engine.submitted[-1][0]
    await ask(gateway, [{"role": "user", "content": "Call."}, call, *first["output"], *told])
    assert gateway.engine.submitted[-1][0] == gone_on


async def test_items_that_are_named_are_those_of_kept_responses(gateway: Storing) -> None:
    first = await ask(gateway, "One?")
    (message,) = first["output"]
    named = [{"role": "user", "content": "One?"}, {"type": "item_reference", "id": message["id"]}]
    second = await ask(gateway, [*named, {"role": "user", "content": "Two?"}])
    said = "user: One?\nassistant: Yes.0\nuser: Two?\nassistant:"
    assert last_prompt(gateway) == said
    async with gateway.http.stream(
        "POST", URL, json={"input": [*named, {"id": message["id"]}], "stream": True}
    ) as stream:
        assert events_of((await stream.aread()).decode())[-1]["type"] == "response.completed"
    assert last_prompt(gateway).count("assistant: Yes.0") == 2
    # What was named is kept with what names it.
    assert (await gateway.http.delete(f"{URL}/{first['id']}")).status_code == 200
    await ask(gateway, "Three?", previous_response_id=second["id"])
    assert last_prompt(gateway) == f"{said} Yes.0\nuser: Three?\nassistant:"
    # Thoughts that aren't there are left out.
    gone = [{"type": "item_reference", "id": id} for id in ("rs_", "rs_x_0")]
    await ask(gateway, [*gone, {"role": "user", "content": "Four?"}])
    assert last_prompt(gateway) == "user: Four?\nassistant:"
    for id in (message["id"], "msg_x_0", "fc_x_0", ""):
        body = {"input": [{"type": "item_reference", "id": id}]}
        refused = await gateway.http.post(URL, json=body)
        assert refused.status_code == 404
        assert refused.json()["error"]["param"] == "input[0].id"


async def test_a_stream_is_kept_before_it_ends(gateway: Storing) -> None:
    async with gateway.http.stream("POST", URL, json={"input": "One?", "stream": True}) as stream:
        events = events_of((await stream.aread()).decode())
    done = events[-1]["response"]
    assert done["status"] == "completed"
    assert (await gateway.http.get(f"{URL}/{done['id']}")).json() == done
    await ask(gateway, "Two?", previous_response_id=done["id"])
    assert last_prompt(gateway).startswith("user: One?\nassistant: Yes.0\n")


async def test_get_and_delete(gateway: Storing) -> None:
    made = await ask(gateway, "One?")
    after = await ask(gateway, "Two?", previous_response_id=made["id"])
    assert (await gateway.http.get(f"{URL}/{made['id']}")).json() == made
    cancelled = await gateway.http.post(f"{URL}/{made['id']}/cancel")
    assert cancelled.status_code == 409
    gone = await gateway.http.delete(f"{URL}/{made['id']}")
    assert gone.json() == {"id": made["id"], "object": "response", "deleted": True}
    for answer in (
        await gateway.http.get(f"{URL}/{made['id']}"),
        await gateway.http.delete(f"{URL}/{made['id']}"),
        await gateway.http.post(f"{URL}/{made['id']}/cancel"),
        await gateway.http.post(URL, json={"input": "x", "previous_response_id": made["id"]}),
    ):
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "response_not_found"
    broken = await gateway.http.post(URL, json={"input": "x", "previous_response_id": after["id"]})
    message = broken.json()["error"]["message"]
    assert made["id"] in message
    assert after["id"] in message


async def test_not_kept_where_it_says_so(gateway: Storing) -> None:
    made = await ask(gateway, "One?", store=False)
    assert not made["store"]
    assert (await gateway.http.get(f"{URL}/{made['id']}")).status_code == 404


async def test_failures_are_not_kept(gateway: Storing) -> None:
    gateway.engine.script = lambda prompt, params: iter([RuntimeError("no")])
    body = {"input": "One?", "stream": True, "request_id": "mine"}
    await gateway.http.post(URL, json=body)
    assert (await gateway.http.get(f"{URL}/resp_mine")).status_code == 404


async def test_nobody_sees_anothers_responses(gateway: Storing) -> None:
    """Not even under an id that both have chosen."""
    alice, bob = ({"authorization": f"Bearer {name}"} for name in ("alice", "bob"))
    theirs = await ask(gateway, "One?", request_id="same", headers=alice)
    assert theirs["id"] == "resp_same"
    body = {"input": "x", "previous_response_id": "resp_same"}
    assert (await gateway.http.post(URL, json=body, headers=bob)).status_code == 404
    assert (await gateway.http.get(f"{URL}/resp_same", headers=bob)).status_code == 404
    named = {"input": [{"type": "item_reference", "id": theirs["output"][0]["id"]}]}
    statuses = [
        (await gateway.http.post(URL, json=named, headers=h)).status_code for h in (alice, bob)
    ]
    assert statuses == [200, 404]
    own = await ask(gateway, "Other?", request_id="same", headers=bob)
    assert (await gateway.http.get(f"{URL}/resp_same", headers=bob)).json() == own
    assert (await gateway.http.get(f"{URL}/resp_same", headers=alice)).json() == theirs


async def test_they_end_unless_somebody_goes_on(gateway: Storing, monkeypatch) -> None:
    first, other = await ask(gateway, "One?"), await ask(gateway, "Other?")
    start = time.time()
    clock = "penstock_gateway.storage.response_records.time.time"
    monkeypatch.setattr(clock, lambda: start + 3000)
    second = await ask(gateway, "Two?", previous_response_id=first["id"])
    monkeypatch.setattr(clock, lambda: start + 5000)
    await ask(gateway, "Three?", previous_response_id=second["id"])
    assert last_prompt(gateway).startswith("user: One?")
    assert (await gateway.http.get(f"{URL}/{other['id']}")).status_code == 404
    assert gateway.store.responses is not None
    await gateway.store.responses.forget_expired()
    assert (await gateway.http.get(f"{URL}/{first['id']}")).status_code == 200


async def test_the_oldest_makes_way(gateway: Storing, monkeypatch) -> None:
    start = time.time()
    made = []
    for number in range(7):
        monkeypatch.setattr(
            "penstock_gateway.storage.response_records.time.time", lambda n=number: start + n
        )
        made.append((await ask(gateway, "x"))["id"])
    there = [(await gateway.http.get(f"{URL}/{id}")).status_code for id in made]
    assert there == [404, 404, 200, 200, 200, 200, 200]


async def test_errors_name_whose_message_it_is(gateway: Storing) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    made = await ask(gateway, "x", request_id="a")
    answer = await gateway.http.post(
        URL,
        json={
            "input": [{"role": "user", "content": [picture]}],
            "previous_response_id": made["id"],
        },
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("input[0]")


async def test_a_server_that_keeps_none_says_so(engine: FakeEngineClient) -> None:
    app = create_app(engine, GatewayConfig(held_responses_mib=0))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        reference = [{"type": "item_reference", "id": "x"}]
        for body in ({"input": "x", "previous_response_id": "resp_1"}, {"input": reference}):
            answer = await http.post(URL, json=body)
            assert answer.status_code == 400
            assert "--stored-response-hours" in answer.json()["error"]["message"]
        assert not (await http.post(URL, json={"input": "x", "store": True})).json()["store"]
        for answer in (await http.get(f"{URL}/resp_1"), await http.delete(f"{URL}/resp_1")):
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "storage_off"


def test_the_setting_needs_a_folder() -> None:
    with pytest.raises(StartupError, match="--data-dir"):
        Store.of(StorageSettings(stored_response_hours=1))


async def test_a_conversation_does_not_go_round(gateway: Storing) -> None:
    """Ids are the client's to choose, and one is used again in the conversation that has it."""
    first = await ask(gateway, "One?", request_id="a")
    second = await ask(gateway, "Two?", request_id="b", previous_response_id=first["id"])
    for again, previous in (("a", first), ("a", second), ("b", second)):
        body = {"input": "x", "request_id": again, "previous_response_id": previous["id"]}
        answer = await gateway.http.post(URL, json=body)
        assert answer.status_code == 400
        assert f"resp_{again}" in answer.json()["error"]["message"]
    await ask(gateway, "Three?", previous_response_id=second["id"])


async def test_a_conversation_is_no_larger_than_a_body(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    """Or a chain of large requests would be more than a gateway has memory for."""
    engine.script = say("Yes.")
    config = GatewayConfig(max_body_bytes=5000)
    async with storing(tmp_path, engine, config=config, stored_response_hours=1) as gateway:
        last, length = (await ask(gateway, "x" * 30))["id"], 1
        while True:
            body = {"input": "x" * 30, "previous_response_id": last}
            answer = await gateway.http.post(URL, json=body)
            if answer.status_code != 200:
                break
            last, length = answer.json()["id"], length + 1
        assert 2 <= length < 8
        assert answer.status_code == 400
        assert "5000 bytes" in answer.json()["error"]["message"]


async def test_what_a_response_answers_is_listed_by_the_sdk(gateway: Storing) -> None:
    first = await ask(gateway, "One?")
    part = {"type": "input_text", "text": "Two?"}
    told = [{"role": "user", "content": [part]}, {"role": "assistant", "content": "Yes?"}]
    asked_too = [*told, {"role": "user", "content": "Three?"}]
    second = await ask(gateway, asked_too, previous_response_id=first["id"])
    gateway.http.headers.pop("authorization", None)
    everything = (
        await gateway.http.get(f"{URL}/{second['id']}/input_items", params={"order": "asc"})
    ).json()
    for item in everything["data"]:
        ITEM.validate_python(item)
    texts = [each["content"][0]["text"] for each in everything["data"]]
    assert texts == ["One?", first["output"][0]["content"][0]["text"], "Two?", "Yes?", "Three?"]
    assert everything["data"][1] == first["output"][0]
    assert not everything["has_more"]
    ids = [each["id"] for each in everything["data"]]
    assert len(set(ids)) == 5
    newest = (await gateway.http.get(f"{URL}/{second['id']}/input_items?limit=2")).json()
    assert [each["id"] for each in newest["data"]] == ids[:2:-1]
    assert (newest["first_id"], newest["last_id"], newest["has_more"]) == (ids[4], ids[3], True)
    rest = await gateway.http.get(
        f"{URL}/{second['id']}/input_items", params={"after": newest["last_id"]}
    )
    assert [each["id"] for each in rest.json()["data"]] == ids[2::-1]
    for path, status in (
        (f"{first['id']}/input_items?after=nonsense", 404),
        (f"{first['id']}/input_items?order=up", 400),
        (f"{first['id']}/input_items?limit=101", 400),
        ("resp_no/input_items", 404),
    ):
        assert (await gateway.http.get(f"{URL}/{path}")).status_code == status


@pytest.mark.parametrize("goes_on", [False, True])
async def test_tokens_of_an_input_are_those_that_the_model_reads(
    gateway: Storing, goes_on: bool
) -> None:
    first = await ask(gateway, "One?")
    body: dict[str, Any] = {"input": "Two?", "instructions": "Be brief."}
    if goes_on:
        body["previous_response_id"] = first["id"]
    counted = await gateway.http.post(f"{URL}/input_tokens", json=body)
    assert counted.status_code == 200
    assert counted.json() == {
        "object": "response.input_tokens",
        "input_tokens": (await ask(gateway, body.pop("input"), **body))["usage"]["input_tokens"],
    }
    wrong = await gateway.http.post(f"{URL}/input_tokens", json={"input": [{"role": "x"}]})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "input[0].content")
