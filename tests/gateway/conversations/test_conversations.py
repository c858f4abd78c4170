"""/v1/conversations, and responses in them, with OpenAI's SDK over a scripted engine."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import Connection, func, select, update

from penstock.config.settings import GatewayConfig
from penstock_gateway.storage.tables import conversation_items, conversations
from tests.gateway.batches.storing import Storing, storing
from tests.gateway.conversations.conversing import URL, client, said, texts
from tests.gateway.fake_engine import FakeEngineClient, say
from tests.gateway.keyring import ALICE, BOB, key, write
from tests.gateway.responses.test_responses import events_of


async def test_created_changed_and_deleted(sdk: openai.AsyncOpenAI) -> None:
    made = await sdk.conversations.create(metadata={"a": "b"}, items=[said("One?")])
    assert made.id.startswith("conv_")
    assert (made.object, made.metadata) == ("conversation", {"a": "b"})
    assert abs(made.created_at - time.time()) < 60
    assert await sdk.conversations.retrieve(made.id) == made
    changed = await sdk.conversations.update(made.id, metadata={"c": "d"})
    assert changed.metadata == {"c": "d"}
    assert (await sdk.conversations.retrieve(made.id)).metadata == {"c": "d"}
    gone = await sdk.conversations.delete(made.id)
    assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
    items = sdk.conversations.items
    for ask in (
        partial(sdk.conversations.retrieve, made.id),
        partial(sdk.conversations.update, made.id, metadata={}),
        partial(sdk.conversations.delete, made.id),
        partial(items.create, made.id, items=[said("x")]),
        partial(items.list, made.id),
        partial(items.retrieve, "msg_x", conversation_id=made.id),
        partial(items.delete, "msg_x", conversation_id=made.id),
        partial(sdk.responses.create, model=None, input="x", conversation=made.id),
    ):
        with pytest.raises(openai.NotFoundError) as missing:
            await ask()
        assert missing.value.code == "conversation_not_found"
    empty = await sdk.conversations.create()
    assert empty.metadata == {}
    assert await texts(sdk, empty.id) == []


@pytest.mark.parametrize(
    ("item", "status", "param"),
    [
        (said("x", "king"), 400, "items[1].role"),
        ({"type": "item_reference", "id": "msg_x"}, 404, "items[1].id"),
    ],
)
async def test_items_that_no_request_could_read_are_refused_at_their_place(
    sdk: openai.AsyncOpenAI, item: Any, status: int, param: str
) -> None:
    there = (await sdk.conversations.create()).id
    for ask in (sdk.conversations.create, partial(sdk.conversations.items.create, there)):
        with pytest.raises(openai.APIStatusError) as refused:
            await ask(items=[said("x"), item])
        assert (refused.value.status_code, refused.value.param) == (status, param)
        assert param in refused.value.message


async def test_items_of_all_kinds_come_back(sdk: openai.AsyncOpenAI) -> None:
    conversation = (await sdk.conversations.create()).id
    picture = "data:image/png;base64,iVBORw0KGgo="
    shown = [{"type": "input_text", "text": "This?"}, {"type": "input_image", "image_url": picture}]
    given: list[Any] = [
        {**said("Hi"), "id": "msg_mine"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]},
        {"role": "user", "content": shown},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "h"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
    ]
    added = await sdk.conversations.items.create(conversation, items=given)
    assert (len(added.data), added.has_more) == (6, False)
    assert len({each.id for each in added.data}) == 6
    assert added.data[0].id != "msg_mine"
    listed = sdk.conversations.items.list(conversation, order="asc", limit=2)
    assert [each async for each in listed] == added.data
    for each in added.data:
        one = await sdk.conversations.items.retrieve(each.id, conversation_id=conversation)
        assert one == each
    assert added.data[2].content[1].image_url == picture
    assert added.data[5].output == "42"


async def test_pages(sdk: openai.AsyncOpenAI) -> None:
    items = [said(str(number)) for number in range(5)]
    conversation = (await sdk.conversations.create(items=items)).id
    assert await texts(sdk, conversation) == list("01234")
    newest = await sdk.conversations.items.list(conversation, limit=2)
    assert [each.content[0].text for each in newest.data] == ["4", "3"]
    assert newest.has_more
    page = await sdk.conversations.items.list(conversation, after=str(newest.last_id), limit=3)
    assert [each.content[0].text for each in page.data] == list("210")
    assert not page.has_more
    with pytest.raises(openai.NotFoundError) as missing:
        await sdk.conversations.items.list(conversation, after="msg_x")
    assert missing.value.code == "item_not_found"
    with pytest.raises(openai.BadRequestError, match=r"\[1, 100\]"):
        await sdk.conversations.items.list(conversation, limit=101)


async def test_an_item_is_deleted(gateway: Storing, sdk: openai.AsyncOpenAI) -> None:
    made = await sdk.conversations.create(items=[said("One?"), said("Two?"), said("Three?")])
    listed = (await sdk.conversations.items.list(made.id, order="asc")).data
    after = await sdk.conversations.items.delete(listed[1].id, conversation_id=made.id)
    assert after == made
    assert await texts(sdk, made.id) == ["One?", "Three?"]
    with pytest.raises(openai.NotFoundError) as missing:
        await sdk.conversations.items.delete(listed[1].id, conversation_id=made.id)
    assert missing.value.code == "item_not_found"
    # Its place isn't given away again.
    await sdk.conversations.items.create(made.id, items=[said("Four?")])
    assert await texts(sdk, made.id) == ["One?", "Three?", "Four?"]


async def test_it_is_bounded(gateway: Storing, sdk: openai.AsyncOpenAI) -> None:
    full = (await sdk.conversations.create(items=[said("x")] * 7)).id
    with pytest.raises(openai.BadRequestError, match="8") as refused:
        await sdk.conversations.items.create(full, items=[said("x")] * 2)
    assert refused.value.code == "conversation_full"
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.responses.create(model=None, input="x", conversation=full)
    assert (refused.value.code, refused.value.param) == ("conversation_full", "conversation")
    assert not gateway.engine.submitted
    assert len(await texts(sdk, full)) == 7
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.conversations.create(items=[said("x")] * 9)
    assert refused.value.code == "conversation_full"
    large = (await sdk.conversations.create(items=[said("x" * 150_000)])).id
    with pytest.raises(openai.BadRequestError, match="it may have 200000"):
        await sdk.conversations.items.create(large, items=[said("x" * 60_000)])
    # Those that weren't used for longest make way.
    await texts(sdk, full)
    await sdk.conversations.items.create(full, items=[said("x")])
    others = [(await sdk.conversations.create()).id for _ in range(2)]
    with pytest.raises(openai.NotFoundError):
        await sdk.conversations.retrieve(large)
    for id in (full, *others):
        await sdk.conversations.retrieve(id)


async def test_an_answer_that_finds_no_room_is_an_error(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    """Another response has filled the conversation meanwhile."""
    engine.script = say("Yes.")
    more = {"stored_response_hours": 1, "max_conversation_items": 3}
    async with storing(tmp_path / "data", engine, **more) as gateway, client(gateway) as sdk:
        for stream in (False, True):
            conversation = (await sdk.conversations.create()).id
            submit = engine.submit

            async def filling(*given: Any, to: str = conversation, ask: Any = submit, **more: Any):
                await sdk.conversations.items.create(to, items=[said("x")] * 2)
                return await ask(*given, **more)

            engine.submit = filling  # type: ignore[method-assign]
            body = {"input": "x", "conversation": conversation, "stream": stream}
            headers = {"authorization": "Bearer none"}
            failed = await gateway.http.post("/v1/responses", json=body, headers=headers)
            engine.submit = submit  # type: ignore[method-assign]
            if stream:
                assert events_of(failed.text)[-1]["type"] == "response.failed"
            else:
                assert failed.status_code == 400
            assert "it may have 3" in failed.text
            assert await texts(sdk, conversation) == ["x", "x"]


async def test_it_ends_when_it_was_not_used_for_so_long(
    gateway: Storing, sdk: openai.AsyncOpenAI
) -> None:
    old, used = [(await sdk.conversations.create(items=[said("x")])).id for _ in range(2)]
    database = gateway.store.conversations._database  # type: ignore[union-attr]

    def age(connection: Connection) -> None:
        connection.execute(update(conversations).values(expires_at=int(time.time()) + 5))

    database.transaction(age)
    await sdk.responses.create(model=None, input="y", conversation=used)

    def end(connection: Connection) -> None:
        over = update(conversations).where(conversations.c.expires_at < time.time() + 10)
        connection.execute(over.values(expires_at=1))

    database.transaction(end)
    with pytest.raises(openai.NotFoundError):
        await sdk.conversations.retrieve(old)
    assert await texts(sdk, used) == ["x", "y", "Yes.0"]
    await gateway.store.conversations.forget_expired()  # type: ignore[union-attr]
    count = select(func.count()).select_from(conversation_items)
    assert database.transaction(lambda connection: connection.scalar(count)) == 3


async def test_it_outlives_the_process(tmp_path: Path, engine: FakeEngineClient) -> None:
    engine.script = say("Yes.")
    more = {"stored_response_hours": 1}
    async with storing(tmp_path / "data", engine, **more) as gateway, client(gateway) as sdk:
        conversation = (await sdk.conversations.create(metadata={"a": "b"})).id
        await sdk.responses.create(model=None, input="One?", conversation=conversation)
    async with storing(tmp_path / "data", engine, **more) as gateway, client(gateway) as sdk:
        assert (await sdk.conversations.retrieve(conversation)).metadata == {"a": "b"}
        assert await texts(sdk, conversation) == ["One?", "Yes.0"]


async def test_two_gateways_share_it(tmp_path: Path, engine: FakeEngineClient) -> None:
    engine.script = say("Yes.")
    async with AsyncExitStack() as stack:
        sdks = []
        for _ in range(2):
            made = storing(tmp_path / "data", engine, stored_response_hours=1)
            sdks.append(
                await stack.enter_async_context(client(await stack.enter_async_context(made)))
            )
        await check_shared(sdks)


async def check_shared(sdks: list[openai.AsyncOpenAI]) -> None:
    """Additions of several gateways at once, whose turns stay together."""
    conversation = (await sdks[0].conversations.create()).id
    await asyncio.gather(
        *(
            sdks[number % 2].responses.create(
                model=None, input=f"{number}?", conversation=conversation
            )
            for number in range(8)
        )
    )
    found = await texts(sdks[1], conversation)
    assert sorted(found[::2]) == [f"{number}?" for number in range(8)]
    assert found[1::2] == ["Yes.0"] * 8


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("", {"metadata": {"a": "x" * 513}}, "metadata", "512"),
        ("", {"metadata": {"a": 1}}, None, "str"),
        ("", {"colour": 1}, "colour", "colour"),
        ("", {"items": [{"type": "nonsense"}]}, "items[0].type", "items[0].type"),
        ("", {"items": [said("x"), {"role": "wizard"}]}, None, "items[1]"),
        ("", {"items": [{"type": "item_reference", "id": "msg_x"}]}, None, "[0]"),
        ("/items", {}, "items", "items"),
        ("/items", {"items": [{"type": "function_call"}]}, None, "items[0]"),
        ("/items?include=nonsense", {"items": []}, "include", "nonsense"),
        ("", {"items": 1}, "items", "array"),
    ],
)
async def test_a_wrong_field_of_a_conversation_is_named(
    gateway: Storing, path: str, body: Any, param: str | None, words: str
) -> None:
    made = (await gateway.http.post(URL, json={})).json()["id"]
    where = f"{URL}/{made}{path}" if path else URL
    refused = await gateway.http.post(where, json=body)
    assert refused.status_code in (400, 404)
    error = refused.json()["error"]
    assert words in error["message"]
    assert param in (None, error["param"])


@pytest.mark.parametrize("named", [{"id": 1}, {}, 1, {"id": "conv_x", "more": 1}])
async def test_wrong_names_of_conversations(gateway: Storing, named: Any) -> None:
    body = {"input": "x", "conversation": named}
    refused = await gateway.http.post("/v1/responses", json=body)
    assert refused.status_code == 400
    assert "conversation" in refused.json()["error"]["param"]


async def test_nobody_sees_anothers_conversations(tmp_path: Path, engine: FakeEngineClient) -> None:
    config = GatewayConfig(api_keys=write(tmp_path / "keys.json", key(ALICE), key(BOB)))
    async with (
        storing(tmp_path / "data", engine, config=config, stored_response_hours=1) as gateway,
        client(gateway, ALICE) as alice,
        client(gateway, BOB) as bob,
    ):
        made = await alice.conversations.create(items=[said("x")])
        (item,) = (await alice.conversations.items.list(made.id)).data
        items = bob.conversations.items
        for ask in (
            partial(bob.conversations.retrieve, made.id),
            partial(bob.conversations.update, made.id, metadata={}),
            partial(bob.conversations.delete, made.id),
            partial(items.create, made.id, items=[said("x")]),
            partial(items.list, made.id),
            partial(items.retrieve, item.id, conversation_id=made.id),
            partial(items.delete, item.id, conversation_id=made.id),
            partial(bob.responses.create, model=None, input="x", conversation=made.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await ask()
        assert await texts(alice, made.id) == ["x"]
        async with client(gateway, "sk-nobody") as nobody:
            with pytest.raises(openai.AuthenticationError):
                await nobody.conversations.retrieve(made.id)


async def test_a_server_that_stores_nothing_says_so(http: httpx.AsyncClient) -> None:
    for method, path in (
        ("POST", URL),
        ("GET", f"{URL}/conv_x"),
        ("POST", f"{URL}/conv_x"),
        ("DELETE", f"{URL}/conv_x"),
        ("POST", f"{URL}/conv_x/items"),
        ("GET", f"{URL}/conv_x/items"),
        ("GET", f"{URL}/conv_x/items/msg_x"),
        ("DELETE", f"{URL}/conv_x/items/msg_x"),
    ):
        refused = await http.request(method, path, json={} if method == "POST" else None)
        assert refused.status_code == 404
        assert refused.json()["error"]["code"] == "storage_off"
        assert "--stored-response-hours" in refused.json()["error"]["message"]
