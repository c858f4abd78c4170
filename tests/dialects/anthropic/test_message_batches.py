"""/v1/messages/batches with Anthropic's SDK, over a scripted engine and the runner of batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from sqlalchemy import Connection, update

from penstock.config.settings import GatewayConfig
from penstock_gateway.storage.tables import batches
from tests.gateway.batches.storing import Storing, storing
from tests.gateway.fake_engine import MODEL, FakeEngineClient, say
from tests.gateway.keyring import ALICE, BOB, OTHER, key, write

URL = "/v1/messages/batches"
WORDS = "Yes."


@pytest.fixture
async def gateway(tmp_path: Path, engine: FakeEngineClient) -> AsyncIterator[Storing]:
    engine.script = say(WORDS)
    async with storing(
        tmp_path / "data", engine, max_batch_lines=50, max_open_batches=3
    ) as gateway:
        yield gateway


def client(gateway: Storing, secret: str = "none") -> anthropic.AsyncAnthropic:
    transport = httpx2.ASGITransport(gateway.app)
    return anthropic.AsyncAnthropic(
        base_url="http://gateway",
        api_key=secret,
        max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport),
        _strict_response_validation=True,
    )


def asked(custom_id: str, **params: Any) -> Any:
    message = {"role": "user", "content": "Is it?"}
    body = {"model": MODEL, "max_tokens": 8, "messages": [message], **params}
    return {"custom_id": custom_id, "params": body}


async def ended(sdk: anthropic.AsyncAnthropic, batch_id: str) -> MessageBatch:
    while (batch := await sdk.messages.batches.retrieve(batch_id)).processing_status != "ended":
        await asyncio.sleep(0.01)
    return batch


async def results(
    sdk: anthropic.AsyncAnthropic, batch_id: str
) -> list[MessageBatchIndividualResponse]:
    return [each async for each in await sdk.messages.batches.results(batch_id)]


def change(gateway: Storing, batch_id: str, **values: Any) -> None:
    """In the database."""

    def work(connection: Connection) -> None:
        connection.execute(update(batches).where(batches.c.id == batch_id).values(values))

    gateway.store.held._database.transaction(work)


async def test_every_request_has_its_result(gateway: Storing) -> None:
    async with client(gateway) as sdk:
        requests = [asked(f"id-{number}") for number in range(20)]
        requests.append(asked("too-hot", temperature=-1))
        requests.append(asked("unknown", model="claude"))
        batch = await sdk.messages.batches.create(requests=requests)
        assert batch.id.startswith("msgbatch_")
        assert batch.processing_status == "in_progress"
        assert batch.request_counts.processing == 22
        assert batch.expires_at - batch.created_at == timedelta(hours=24)
        assert batch.results_url is batch.ended_at is batch.archived_at is None
        async with gateway.running():
            done = await ended(sdk, batch.id)
        counts = done.request_counts
        assert (counts.succeeded, counts.errored, counts.processing) == (20, 2, 0)
        assert done.ended_at is not None
        assert done.ended_at >= done.created_at
        assert done.cancel_initiated_at is None
        found = await results(sdk, batch.id)
    assert [each.custom_id for each in found[:20]] == [f"id-{number}" for number in range(20)]
    for each in found[:20]:
        assert each.result.type == "succeeded"
        assert each.result.message.content[0].text == f"{WORDS}0"
    errors = {each.custom_id: each.result.error.error for each in found[20:]}
    assert errors["too-hot"].type == "invalid_request_error"
    assert "temperature" in errors["too-hot"].message
    assert errors["unknown"].type == "not_found_error"


async def test_they_stand_behind_everything_else(gateway: Storing) -> None:
    async with client(gateway) as sdk, gateway.running():
        batch = await sdk.messages.batches.create(requests=[asked("a")])
        await ended(sdk, batch.id)
    assert [terms.background for terms in gateway.engine.terms] == [True]


async def test_pages(gateway: Storing) -> None:
    async with client(gateway) as sdk:
        ids = []
        for number in range(3):
            batch = await sdk.messages.batches.create(requests=[asked("a")])
            change(gateway, batch.id, created_at=1000 + number)
            ids.append(batch.id)
        newest = ids[::-1]
        assert [each.id async for each in sdk.messages.batches.list(limit=1)] == newest
        page = await sdk.messages.batches.list(limit=2)
        assert [each.id for each in page.data] == newest[:2]
        assert (page.first_id, page.last_id, page.has_more) == (newest[0], newest[1], True)
        page = await sdk.messages.batches.list(limit=2, after_id=newest[1])
        assert ([each.id for each in page.data], page.has_more) == (newest[2:], False)
        page = await sdk.messages.batches.list(limit=1, before_id=newest[2])
        assert ([each.id for each in page.data], page.has_more) == ([newest[1]], True)
        page = await sdk.messages.batches.list(before_id=newest[2])
        assert ([each.id for each in page.data], page.has_more) == (newest[:2], False)
        with pytest.raises(anthropic.BadRequestError, match="after_id"):
            await sdk.messages.batches.list(after_id="msgbatch_x")
        with pytest.raises(anthropic.BadRequestError, match=r"limit is .*\[1, 1000\]"):
            await sdk.messages.batches.list(limit=1001)
        with pytest.raises(anthropic.BadRequestError, match="exclude"):
            await sdk.messages.batches.list(after_id=ids[0], before_id=ids[1])


async def test_cancelled(gateway: Storing) -> None:
    async with client(gateway) as sdk:
        batch = await sdk.messages.batches.create(requests=[asked("a"), asked("b")])
        cancelled = await sdk.messages.batches.cancel(batch.id)
        assert cancelled.processing_status == "canceling"
        assert cancelled.cancel_initiated_at is not None
        assert cancelled.request_counts.processing == 2
        async with gateway.running():
            done = await ended(sdk, batch.id)
        assert done.request_counts.canceled == 2
        found = await results(sdk, batch.id)
        assert {each.custom_id: each.result.type for each in found} == dict.fromkeys(
            "ab", "canceled"
        )
        with pytest.raises(anthropic.BadRequestError, match="has ended"):
            await sdk.messages.batches.cancel(batch.id)


async def test_what_was_answered_before_it_was_cancelled_is_kept(
    gateway: Storing, engine: FakeEngineClient
) -> None:
    gate = asyncio.Event()

    def script(prompt: list[int], params: Any) -> Any:
        if b"wait" in bytes(prompt):
            gate.set()
            return iter([3600.0])
        return say(WORDS)(prompt, params)

    engine.script = script
    waits = asked("b", messages=[{"role": "user", "content": "wait"}])
    async with client(gateway) as sdk, gateway.running():
        batch = await sdk.messages.batches.create(requests=[asked("a"), waits])
        await gate.wait()
        while (await gateway.store.held.counts(batch.id)).completed < 1:
            await asyncio.sleep(0.01)
        await sdk.messages.batches.cancel(batch.id)
        done = await ended(sdk, batch.id)
        assert (done.request_counts.succeeded, done.request_counts.canceled) == (1, 1)
        found = await results(sdk, batch.id)
    assert [(each.custom_id, each.result.type) for each in found] == [
        ("a", "succeeded"),
        ("b", "canceled"),
    ]


async def test_expired(gateway: Storing, engine: FakeEngineClient) -> None:
    engine.script = lambda prompt, params: iter([3600.0])
    async with client(gateway) as sdk:
        batch = await sdk.messages.batches.create(requests=[asked("a"), asked("b")])
        change(gateway, batch.id, expires_at=1)
        async with gateway.running():
            done = await ended(sdk, batch.id)
        assert done.request_counts.expired == 2
        found = await results(sdk, batch.id)
    assert [(each.custom_id, each.result.type) for each in found] == [
        ("a", "expired"),
        ("b", "expired"),
    ]


async def test_deleted_with_its_files(gateway: Storing, tmp_path: Path) -> None:
    async with client(gateway) as sdk:
        batch = await sdk.messages.batches.create(requests=[asked("a"), asked("b", top_p=9)])
        with pytest.raises(anthropic.BadRequestError, match="cancel it first"):
            await sdk.messages.batches.delete(batch.id)
        with pytest.raises(anthropic.NotFoundError, match="hasn't ended"):
            await sdk.get(f"{URL}/{batch.id}/results", cast_to=object)
        async with gateway.running():
            await ended(sdk, batch.id)
        folder = tmp_path / "data" / "files"
        assert len(list(folder.glob("file-*"))) == 3
        gone = await sdk.messages.batches.delete(batch.id)
        assert (gone.id, gone.type) == (batch.id, "message_batch_deleted")
        assert not list(folder.glob("file-*"))
        assert (await gateway.http.get("/v1/files")).json()["data"] == []
        for ask in (sdk.messages.batches.retrieve, sdk.messages.batches.delete):
            with pytest.raises(anthropic.NotFoundError, match="there is no batch"):
                await ask(batch.id)


async def test_results_that_are_no_longer_kept(gateway: Storing) -> None:
    async with client(gateway) as sdk, gateway.running():
        batch = await sdk.messages.batches.create(requests=[asked("a")])
        done = await ended(sdk, batch.id)
        file = await _only(gateway)
        assert file.output_file_id is not None
        gateway.store.contents.remove(file.output_file_id)
        with pytest.raises(anthropic.NotFoundError, match="no longer stored"):
            await sdk.get(str(done.results_url), cast_to=object)
        change(gateway, batch.id, completed_at=1000)
        old = await sdk.messages.batches.retrieve(batch.id)
        assert old.results_url is None
        assert old.archived_at is not None
        assert old.ended_at is not None
        assert old.archived_at - old.ended_at == timedelta(days=30)


async def _only(gateway: Storing) -> Any:
    (owner,) = {terms.tenant for terms in gateway.engine.terms}
    (found,) = await gateway.store.message_batches.page(owner, limit=10)
    return found


async def test_each_api_has_its_own(gateway: Storing) -> None:
    """Neither shows, nor cancels, the other's."""
    batch = (await gateway.http.post(URL, json={"requests": [asked("a")]})).json()["id"]
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions"}
    body = {"model": MODEL, "prompt": "x", "max_tokens": 1}
    other = await gateway.begin(json.dumps({**line, "body": body}).encode())
    listed = (await gateway.http.get("/v1/batches")).json()["data"]
    assert [each["id"] for each in listed] == [other]
    listed = (await gateway.http.get(URL)).json()["data"]
    assert [each["id"] for each in listed] == [batch]
    for path in (f"/v1/batches/{batch}", f"{URL}/{other}"):
        assert (await gateway.http.get(path)).status_code == 404
        assert (await gateway.http.post(f"{path}/cancel")).status_code == 404
    made = await gateway.http.post(
        "/v1/batches", json={"input_file_id": "file-x", "endpoint": "/v1/messages"}
    )
    assert made.status_code == 400


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "requests"),
        ({"requests": []}, "1 to 50"),
        ({"requests": [asked(str(number)) for number in range(51)]}, "1 to 50"),
        ({"requests": [asked("a b")]}, r"requests[0].custom_id"),
        ({"requests": [asked("x" * 65)]}, "1 to 64 letters"),
        ({"requests": [asked("a"), asked("b"), asked("a")]}, "requests[2].custom_id"),
        ({"requests": [{"custom_id": "a", "params": 1}]}, "requests[0].params"),
        ({"requests": [{"custom_id": "a"}]}, "params"),
        ({"requests": [asked("a", stream=True)]}, "requests[0].params.stream"),
        ({"requests": [{**asked("a"), "more": 1}]}, "more"),
        ({"requests": [asked("a")], "more": 1}, "more"),
    ],
)
async def test_a_wrong_field_of_a_message_batch_is_named(
    gateway: Storing, body: dict[str, Any], words: str
) -> None:
    refused = await gateway.http.post(URL, json=body)
    assert refused.status_code == 400
    told = refused.json()
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert words in told["error"]["message"]
    # Nothing of it is left.
    assert (await gateway.http.get("/v1/files")).json()["data"] == []
    assert list((Path(gateway.store.settings.data_dir or "") / "files").iterdir()) == []


async def test_a_body_with_line_breaks_is_one_line(gateway: Storing) -> None:
    text = json.dumps({"requests": [asked("a", system="one\ntwo")]}, indent=2)
    content = text.replace("\n", "\r\n").encode()
    headers = {"content-type": "application/json", "authorization": "Bearer none"}
    made = await gateway.http.post(URL, content=content, headers=headers)
    assert made.status_code == 200
    async with client(gateway) as sdk, gateway.running():
        await ended(sdk, made.json()["id"])
        (result,) = await results(sdk, made.json()["id"])
        assert result.result.type == "succeeded", result
    assert b"one\ntwo" in bytes(gateway.engine.submitted[-1][0])


async def test_a_request_that_is_too_long_as_a_line(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    """A request that is within the bound as a body has a few bytes more as a line of a file."""
    config = GatewayConfig(max_body_bytes=2000)
    async with storing(tmp_path / "data", engine, config=config) as gateway:
        bare = len(json.dumps({"requests": [asked("a", system="")]}))
        body = json.dumps({"requests": [asked("a", system="x" * (1990 - bare))]})
        headers = {"content-type": "application/json"}
        refused = await gateway.http.post(URL, content=body.encode(), headers=headers)
        assert refused.status_code == 413
        assert refused.json()["error"]["type"] == "request_too_large"
        assert "requests[0] has" in refused.json()["error"]["message"]


async def test_message_batches_are_bounded_in_number_and_bytes(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    more = {"max_open_batches": 1, "max_stored_bytes": 1024, "max_file_bytes": 1500}
    async with storing(tmp_path / "data", engine, **more) as gateway:
        assert (await gateway.http.post(URL, json={"requests": [asked("a")]})).status_code == 200
        refused = await gateway.http.post(URL, json={"requests": [asked("a")]})
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert "1 batches are open" in refused.json()["error"]["message"]
        refused = await gateway.http.post(URL, json={"requests": [asked("a", system="x" * 1200)]})
        assert refused.status_code == 429
        assert "space" in refused.json()["error"]["message"]
        refused = await gateway.http.post(URL, json={"requests": [asked("a", system="x" * 2000)]})
        assert refused.status_code == 413
        assert len((await gateway.http.get("/v1/files")).json()["data"]) == 1


async def test_nobody_sees_anothers_message_batches(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    keys = write(tmp_path / "keys.json", key(ALICE), key(BOB), key(OTHER, models=["another"]))
    config = GatewayConfig(api_keys=keys)
    async with (
        storing(tmp_path / "data", engine, config=config) as gateway,
        client(gateway, ALICE) as alice,
        client(gateway, BOB) as bob,
    ):
        batch = await alice.messages.batches.create(requests=[asked("a")])
        assert [each async for each in bob.messages.batches.list()] == []
        for ask in (
            bob.messages.batches.retrieve,
            bob.messages.batches.cancel,
            bob.messages.batches.delete,
            bob.messages.batches.results,
        ):
            with pytest.raises(anthropic.NotFoundError):
                await ask(batch.id)
        with pytest.raises(anthropic.BadRequestError):
            await bob.messages.batches.list(after_id=batch.id)
        async with client(gateway, "sk-nobody") as nobody:
            with pytest.raises(anthropic.AuthenticationError):
                await nobody.messages.batches.retrieve(batch.id)
        # A key's rights are asked for each of its requests.
        async with client(gateway, OTHER) as other, gateway.running():
            its = await other.messages.batches.create(requests=[asked("a")])
            assert (await ended(other, its.id)).request_counts.errored == 1
            (result,) = await results(other, its.id)
            assert result.result.error.error.type in ("permission_error", "not_found_error")
            assert (await ended(alice, batch.id)).request_counts.succeeded == 1


async def test_a_key_that_is_taken_away(tmp_path: Path, engine: FakeEngineClient) -> None:
    file = tmp_path / "keys.json"
    config = GatewayConfig(api_keys=write(file, key(ALICE, tenant="a"), key(BOB, tenant="a")))
    async with (
        storing(tmp_path / "data", engine, config=config) as gateway,
        client(gateway, ALICE) as alice,
        client(gateway, BOB) as bob,
    ):
        batch = await alice.messages.batches.create(requests=[asked("a")])
        write(file, key(BOB, tenant="a"))
        gateway.app.state.service.ring.reload()
        async with gateway.running():
            assert (await ended(bob, batch.id)).request_counts.errored == 1
        (result,) = await results(bob, batch.id)
        assert result.result.error.error.type == "authentication_error"


async def test_a_server_that_stores_nothing_says_so(http: Any) -> None:
    asks = [("POST", URL), ("GET", URL)]
    asks += [(method, f"{URL}/msgbatch_x") for method in ("GET", "DELETE")]
    asks += [("GET", f"{URL}/msgbatch_x/results"), ("POST", f"{URL}/msgbatch_x/cancel")]
    for method, path in asks:
        body = {"requests": [asked("a")]} if method == "POST" and path == URL else None
        refused = await http.request(method, path, json=body)
        assert refused.status_code == 404
        told = refused.json()
        assert (told["type"], told["error"]["type"]) == ("error", "not_found_error")
        assert "--data-dir" in told["error"]["message"]
