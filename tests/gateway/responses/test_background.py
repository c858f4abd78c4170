"""Responses in the background: what is answered in the end, whoever dies, and who may look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.client import SequenceDelta
from penstock.config.settings import GatewayConfig
from penstock.errors import EngineLost, Overloaded
from penstock_gateway.batches.background import BackgroundRunner
from penstock_gateway.batches.process import caller_of
from penstock_gateway.storage import background_records, holds, response_records
from tests.gateway.batches.storing import Storing, storing
from tests.gateway.fake_engine import FakeEngineClient, say
from tests.gateway.keyring import ALICE, BOB, bearer, key, write

URL = "/v1/responses"
ENDLESS: Any = lambda prompt, params: iter([1000.0])  # noqa: E731


@pytest.fixture
async def gateway(tmp_path: Path, engine: FakeEngineClient) -> AsyncIterator[Storing]:
    engine.script = say("Yes.")
    more: dict[str, Any] = {"stored_response_hours": 1, "max_background_responses": 3}
    async with storing(tmp_path, engine, **more) as gateway:
        yield gateway


@asynccontextmanager
async def running(
    gateway: Storing, at_once: int = 4, app: ASGIApp | None = None
) -> AsyncIterator[None]:
    """A runner at work; cut off at the end, wherever it is."""
    assert gateway.store.background is not None
    caller = partial(caller_of, gateway.app.state.service.ring, background=False)
    runner = BackgroundRunner(gateway.store.background, app or gateway.app, caller, at_once=at_once)
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def begin(gateway: Storing, said: Any = "One?", **more: Any) -> dict[str, Any]:
    headers = more.pop("headers", None)
    body = {"input": said, "background": True, **more}
    answer = await gateway.http.post(URL, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def seen(gateway: Storing, id: str, headers: Any = None) -> dict[str, Any]:
    answer = await gateway.http.get(f"{URL}/{id}", headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def until(gateway: Storing, id: str, *statuses: str, headers: Any = None) -> dict[str, Any]:
    while (found := await seen(gateway, id, headers))["status"] not in statuses:
        await asyncio.sleep(0.01)
    return found


async def test_it_is_answered_by_and_by_as_it_would_be_at_once(gateway: Storing) -> None:
    more: dict[str, Any] = {"temperature": 0.5, "metadata": {"a": "b"}, "instructions": "Be brief."}
    at_once = (await gateway.http.post(URL, json={"input": "One?", **more})).json()
    queued = await begin(gateway, **more)
    assert (queued["status"], queued["background"], queued["store"]) == ("queued", True, True)
    assert (queued["output"], queued["metadata"]) == ([], {"a": "b"})
    assert await seen(gateway, queued["id"]) == queued
    async with running(gateway):
        done = await until(gateway, queued["id"], "completed")
    assert done["background"]
    own = {"id", "created_at", "completed_at", "background", "output", "usage"}
    assert {k: v for k, v in done.items() if k not in own} == {
        k: v for k, v in at_once.items() if k not in own
    }
    texts = [each["output"][0]["content"][0]["text"] for each in (done, at_once)]
    assert texts[0] == texts[1]
    assert done["usage"]["total_tokens"] == at_once["usage"]["total_tokens"]
    assert gateway.engine.submitted[0][0] == gateway.engine.submitted[1][0]
    # It isn't behind the others, as a batch is.
    assert [terms.background for terms in gateway.engine.terms] == [False, False]


async def test_one_that_a_preparer_reads_is_begun_and_refused_as_any_other(
    gateway: Storing,
) -> None:
    """What there is of a store is known to preparers, too."""
    long = b" " * 20_000
    refused = b'{"input": "One?", "background": true, "store": false' + long + b"}"
    answer = await gateway.http.post(URL, content=refused)
    assert answer.status_code == 400
    assert "background: true needs stored responses" in answer.json()["error"]["message"]
    body = b'{"input": "One?", "background": true' + long + b"}"
    queued = (await gateway.http.post(URL, content=body)).json()
    assert queued["status"] == "queued"


async def test_a_request_goes_on_from_it_once_it_has_ended(gateway: Storing) -> None:
    first = await begin(gateway)
    early = {"input": "Two?", "previous_response_id": first["id"]}
    answer = await gateway.http.post(URL, json=early)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "response_not_ended"
    async with running(gateway):
        await until(gateway, first["id"], "completed")
        second = await begin(gateway, "Two?", previous_response_id=first["id"])
        done = await until(gateway, second["id"], "completed")
    assert done["previous_response_id"] == first["id"]
    said = bytes(gateway.engine.submitted[-1][0]).decode()
    assert said == "user: One?\nassistant: Yes.0\nuser: Two?\nassistant:"


@pytest.mark.parametrize("is_running", [False, True])
async def test_cancelled(gateway: Storing, is_running: bool) -> None:
    gateway.engine.script = ENDLESS
    queued = await begin(gateway)
    async with running(gateway):
        if is_running:
            await until(gateway, queued["id"], "in_progress")
            while not gateway.engine.generations:
                await asyncio.sleep(0.01)
        ended = await gateway.http.post(f"{URL}/{queued['id']}/cancel")
        assert ended.status_code == 200
        assert ended.json()["status"] == "cancelled"
        if is_running:
            async with asyncio.timeout(20):
                await gateway.engine.generations[0].aborted.wait()
        # Once more is no error, and what has ended otherwise is shown as it is.
        again = await gateway.http.post(f"{URL}/{queued['id']}/cancel")
        assert (again.status_code, again.json()) == (200, ended.json())
        assert await seen(gateway, queued["id"]) == ended.json()
        gateway.engine.script = say("Yes.")
        other = await begin(gateway)
        done = await until(gateway, other["id"], "completed")
        assert (await gateway.http.post(f"{URL}/{other['id']}/cancel")).json() == done


async def test_deleted_while_it_runs(gateway: Storing) -> None:
    gateway.engine.script = ENDLESS
    queued = await begin(gateway)
    async with running(gateway):
        while not gateway.engine.generations:
            await asyncio.sleep(0.01)
        assert (await gateway.http.delete(f"{URL}/{queued['id']}")).status_code == 200
        async with asyncio.timeout(20):
            await gateway.engine.generations[0].aborted.wait()
        assert (await gateway.http.get(f"{URL}/{queued['id']}")).status_code == 404


async def test_another_runner_goes_on_when_one_has_died(
    gateway: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.engine.script = ENDLESS
    monkeypatch.setattr(holds, "HOLD_SECONDS", 2.0)
    ids = [(await begin(gateway, f"{number}?"))["id"] for number in range(3)]
    records = gateway.store.background
    assert records is not None
    # One that holds all of them and says nothing any more.
    for _ in ids:
        assert await records.claim("dead", []) is not None
    assert await records.claim("other", []) is None
    gateway.engine.script = say("Yes.")
    async with running(gateway):
        for each in ids:
            assert (await until(gateway, each, "completed"))["output"]
    assert len(gateway.engine.submitted) == 3


async def test_a_clock_that_is_set_back_keeps_no_response_waiting(
    gateway: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a dead runner holds, and one that was put off for a while."""
    monkeypatch.setattr(holds, "HOLD_SECONDS", 2.0)
    ids = [(await begin(gateway, f"{number}?"))["id"] for number in range(2)]
    records = gateway.store.background
    assert records is not None
    assert await records.claim("dead", []) is not None
    later = await records.claim("putting off", [])
    assert later is not None
    await records.postpone("putting off", later, 5.0)
    now = time.time
    monkeypatch.setattr(background_records.time, "time", lambda: now() - 3600)
    gateway.engine.script = say("Yes.")
    async with running(gateway), asyncio.timeout(60):
        for each in ids:
            assert (await until(gateway, each, "completed"))["output"]


async def test_one_that_is_open_does_not_expire(
    gateway: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it waits, or wherever a clock is set to: it is kept from its end on."""
    queued = await begin(gateway)
    now = time.time
    monkeypatch.setattr(response_records.time, "time", lambda: now() + 366 * 86_400)
    await gateway.store.responses.forget_expired()
    assert (await seen(gateway, queued["id"]))["status"] == "queued"
    gateway.engine.script = say("Yes.")
    async with running(gateway), asyncio.timeout(60):
        assert (await until(gateway, queued["id"], "completed"))["output"]
    await gateway.store.responses.forget_expired()
    assert (await seen(gateway, queued["id"]))["status"] == "completed"


async def test_one_that_leaves_hands_over_at_once(gateway: Storing) -> None:
    gateway.engine.script = ENDLESS
    queued = await begin(gateway)
    async with running(gateway):
        while not gateway.engine.generations:
            await asyncio.sleep(0.01)
    gateway.engine.script = say("Yes.")
    async with running(gateway):
        done = await asyncio.wait_for(until(gateway, queued["id"], "completed"), 10)
    assert done["output"]


async def test_no_room_is_another_time_and_an_error_is_told(gateway: Storing) -> None:
    gateway.engine.refusal = Overloaded("full", retry_after=0.05)
    queued = await begin(gateway)
    async with running(gateway):
        while (await seen(gateway, queued["id"]))["status"] != "in_progress":
            await asyncio.sleep(0.01)
        gateway.engine.refusal = None
        await until(gateway, queued["id"], "completed")
        gateway.engine.script = lambda prompt, params: iter([RuntimeError("broken")])
        failing = await begin(gateway)
        failed = await until(gateway, failing["id"], "failed")
    assert failed["error"]["code"] == "server_error"
    assert failed["id"] == failing["id"]


BEGUN = SequenceDelta(index=0, text="a", token_ids=[97])


async def streamed(gateway: Storing) -> str:
    """All events of one in the background, up to its last."""
    body = {"input": "One?", "background": True, "stream": True}
    async with running(gateway), asyncio.timeout(40):
        return (await gateway.http.post(URL, json=body)).text


async def test_a_streamed_one_that_an_operator_aborts_has_failed(gateway: Storing) -> None:
    """Once, though a client would go on elsewhere with such a stream that broke off."""
    aborted = SequenceDelta(index=0, finish_reason="abort")
    gateway.engine.script = lambda prompt, params: iter([[BEGUN], [aborted]])
    told = await streamed(gateway)
    assert "response.failed" in told
    assert "aborted by the server" in told
    assert len(gateway.engine.submitted) == 1


async def test_a_streamed_one_that_loses_its_engine_core_is_taken_up_again(
    gateway: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "HOLD_SECONDS", 2.0)
    lost = EngineLost("none reconnected")
    whole = SequenceDelta(index=0, text="a", token_ids=[97], finish_reason="stop")
    scripts: list[Any] = [iter([[BEGUN], lost]), iter([[whole]])]
    gateway.engine.script = lambda prompt, params: scripts.pop(0)
    told = await streamed(gateway)
    assert "response.completed" in told
    assert not scripts


async def test_one_that_finds_no_room_keeps_none_from_another(gateway: Storing) -> None:
    """A model that can't be started says 503 for as long as it can't."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        if b"Never?" not in message["body"]:
            await gateway.app(scope, replayed(message, receive), send)
            return
        headers = [(b"retry-after", b"1")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    never, other = await begin(gateway, "Never?"), await begin(gateway, "One?")
    async with running(gateway, at_once=1, app=app):
        await asyncio.wait_for(until(gateway, other["id"], "completed"), 10)
        assert (await seen(gateway, never["id"]))["status"] == "in_progress"


def replayed(message: Message, receive: Receive) -> Receive:
    """The message again, and then what comes."""
    first = [message]

    async def next_one() -> Message:
        return first.pop() if first else await receive()

    return next_one


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"store": False}, "background"),
        ({"temperature": -1}, "temperature"),
        ({"previous_response_id": "resp_no"}, "previous_response_id"),
        ({"tools": [{"type": "hats"}]}, None),
    ],
)
async def test_what_is_wrong_is_told_at_once(
    gateway: Storing, body: dict[str, Any], param: str | None
) -> None:
    answer = await gateway.http.post(URL, json={"input": "One?", "background": True, **body})
    assert answer.status_code in (400, 404)
    assert param is None or answer.json()["error"]["param"] == param


async def test_so_many_may_wait(gateway: Storing) -> None:
    ids = [(await begin(gateway))["id"] for _ in range(3)]
    answer = await gateway.http.post(URL, json={"input": "One?", "background": True})
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "too_many_background_responses"
    await gateway.http.post(f"{URL}/{ids[0]}/cancel")
    await begin(gateway)


async def test_it_is_the_tenants_own_and_asked_as_its_key(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    engine.script = say("Yes.")
    keys = write(tmp_path / "keys.json", key(ALICE), key(BOB))
    config = GatewayConfig(api_keys=str(keys))
    alice, bob = bearer(ALICE), bearer(BOB)
    async with storing(
        tmp_path / "data", engine, config=config, stored_response_hours=1
    ) as gateway:
        first = await begin(gateway, headers=alice)
        for path in (f"{URL}/{first['id']}", f"{URL}/{first['id']}/cancel"):
            ask = gateway.http.post if path.endswith("cancel") else gateway.http.get
            assert (await ask(path, headers=bob)).status_code == 404
        async with running(gateway):
            await until(gateway, first["id"], "completed", headers=alice)
        (terms,) = engine.terms
        assert terms.tenant
        # When the key is gone, its responses end with an error.
        assert gateway.store.background is not None
        second = await begin(gateway, headers=alice)
        runner = BackgroundRunner(
            gateway.store.background, gateway.app, lambda owner, digest: None, at_once=1
        )
        task = asyncio.create_task(runner.run())
        failed = await until(gateway, second["id"], "failed", headers=alice)
        task.cancel()
        assert "no longer valid" in failed["error"]["message"]
    assert len(engine.terms) == 1
