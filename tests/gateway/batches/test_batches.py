"""/v1/batches and their runner, over a scripted engine."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from penstock.config.settings import GatewayConfig
from penstock.errors import Overloaded
from penstock_gateway.batches import run
from penstock_gateway.storage import held_batches
from penstock_gateway.storage.held_batches import OF_OWNER
from penstock_gateway.storage.records import RequestCounts
from tests.gateway.batches.storing import Storing, line, storing
from tests.gateway.fake_engine import MODEL, FakeEngineClient, say
from tests.gateway.keyring import ALICE, BOB, bearer, key, write


@pytest.fixture
async def gateway(tmp_path: Path, engine: FakeEngineClient) -> AsyncIterator[Storing]:
    async with storing(
        tmp_path / "data", engine, max_batch_lines=50, max_open_batches=3
    ) as gateway:
        yield gateway


async def test_answers_in_the_order_of_the_lines(gateway: Storing) -> None:
    async with gateway.running():
        content = b"\n".join(line(f"id-{number}") for number in range(20))
        batch = await gateway.ended(await gateway.begin(content, metadata={"a": "b"}))
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert batch["metadata"] == {"a": "b"}
    assert batch["error_file_id"] is None
    times = [batch[name] for name in ("created_at", "in_progress_at", "finalizing_at")]
    assert [*times, batch["completed_at"]] == sorted([*times, batch["completed_at"]])
    found = await gateway.results(batch["output_file_id"])
    assert [each["custom_id"] for each in found] == [f"id-{number}" for number in range(20)]
    assert {each["response"]["status_code"] for each in found} == {200}
    assert {each["response"]["body"]["object"] for each in found} == {"text_completion"}
    assert all(each["error"] is None and each["response"]["request_id"] for each in found)


async def test_a_byte_order_mark_is_skipped(gateway: Storing) -> None:
    async with gateway.running():
        content = b"\xef\xbb\xbf" + line("a") + line("b")
        batch = await gateway.ended(await gateway.begin(content))
    found = await gateway.results(batch["output_file_id"])
    assert [each["custom_id"] for each in found] == ["a", "b"]


async def test_lines_stand_behind_everything_else(gateway: Storing) -> None:
    async with gateway.running():
        await gateway.ended(await gateway.begin(line("a")))
    assert [terms.background for terms in gateway.engine.terms] == [True]
    await gateway.http.post("/v1/completions", json={"prompt": "a"})
    assert [terms.background for terms in gateway.engine.terms] == [True, False]


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"\n\n", "empty_file", "no requests"),
        (b"{\n", "invalid_line", "not a valid request"),
        (b"[]\n", "invalid_line", "array"),
        (line("a").decode().encode("utf-16"), "invalid_line", "it must be UTF-8"),
        (b'{"custom_id": "a"}\n', "invalid_line", "url"),
        (line("a") + b"\xff\n", "invalid_line", "not a valid request"),
        (line("a", method="GET"), "invalid_request", "allowed: POST"),
        (line("a", url="/v1/embeddings"), "invalid_request", "/v1/completions"),
        (line(""), "invalid_request", "custom_id"),
        (line("x" * 513), "invalid_request", "512"),
        (line("a") + line("b") + line("a"), "duplicate_custom_id", "another line"),
        (line("a", stream=True), "invalid_request", "stream"),
        (b"".join(line(str(n)) for n in range(51)), "too_many_lines", "50"),
        (line("a", prompt="x" * 100_001), "line_too_long", "100000 bytes"),
        (line("a")[:-3] + b', "more": 1}\n', "invalid_line", "not a valid request"),
    ],
)
async def test_wrong_files(gateway: Storing, content: bytes, code: str, words: str) -> None:
    async with gateway.running():
        batch = await gateway.ended(await gateway.begin(content))
    assert batch["status"] == "failed"
    assert batch["failed_at"] is not None
    error = batch["errors"]["data"][-1]
    assert error["code"] == code
    assert words in error["message"]
    assert not gateway.engine.terms


async def test_the_lines_of_errors_are_told(gateway: Storing) -> None:
    async with gateway.running():
        content = line("a") + b"nonsense\n" + line("b", stream=True) + line("c")
        batch = await gateway.ended(await gateway.begin(content))
    assert [error["line"] for error in batch["errors"]["data"]] == [2, 3]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"endpoint": "/v1/nothing"}, "endpoint"),
        ({"completion_window": "1 day"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "x", "seconds": 3600}}, "output_expires_after"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
            "output_expires_after.seconds",
        ),
        ({"colour": 1}, "colour"),
    ],
)
async def test_wrong_requests(gateway: Storing, body: dict[str, Any], param: str) -> None:
    file = (await gateway.upload(line("a"))).json()["id"]
    whole = {"input_file_id": file, "endpoint": "/v1/completions", **body}
    answer = await gateway.http.post("/v1/batches", json=whole)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_files_that_are_not_there(gateway: Storing) -> None:
    body = {"input_file_id": "file-" + "0" * 32, "endpoint": "/v1/completions"}
    answer = await gateway.http.post("/v1/batches", json=body)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "file_not_found"


async def test_so_many_may_be_open(gateway: Storing) -> None:
    for _ in range(3):
        await gateway.begin(line("a"))
    file = (await gateway.upload(line("a"))).json()["id"]
    body = {"input_file_id": file, "endpoint": "/v1/completions"}
    answer = await gateway.http.post("/v1/batches", json=body)
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "too_many_batches"


async def test_a_line_that_finds_no_room_comes_again(gateway: Storing, monkeypatch) -> None:
    monkeypatch.setattr(run, "LONGEST_PAUSE", 0.01)
    refusals = itertools.count()

    def script(prompt: list[int], params: Any) -> Any:
        if next(refusals) < 3:
            return [Overloaded("no room", retry_after=1.0)]
        return say("ab")(prompt, params)

    gateway.engine.script = script
    async with gateway.running():
        batch = await gateway.ended(await gateway.begin(line("a")))
    assert batch["request_counts"]["completed"] == 1
    assert len(gateway.engine.terms) == 4


async def test_a_runner_that_dies_leaves_its_work_to_another(gateway: Storing, monkeypatch) -> None:
    """What was answered isn't asked again; what was under way is."""
    monkeypatch.setattr(held_batches, "HOLD_SECONDS", 1.5)
    asked: list[str] = []
    held = asyncio.Event()

    def script(prompt: list[int], params: Any) -> Any:
        text = bytes(prompt).decode()
        asked.append(text)
        if text == "stuck" and asked.count("stuck") == 1:
            held.set()
            yield 1000.0
        yield from say("ab")(prompt, params)

    gateway.engine.script = script
    content = line("a", prompt="one") + line("b", prompt="stuck") + line("c", prompt="three")
    batch_id = await gateway.begin(content)
    # Frozen: it holds its batch, and says so no more.
    monkeypatch.setattr(gateway.store.held, "let_go", _nothing)
    async with gateway.running():
        await held.wait()
        while (await gateway.batch(batch_id))["request_counts"]["completed"] < 2:
            await asyncio.sleep(0.01)
    async with gateway.running():
        batch = await gateway.ended(batch_id)
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    assert sorted(asked) == ["one", "stuck", "stuck", "three"]
    found = await gateway.results(batch["output_file_id"])
    assert [each["custom_id"] for each in found] == ["a", "b", "c"]


async def test_a_clock_that_is_set_back_keeps_nothing_waiting(
    gateway: Storing, monkeypatch
) -> None:
    """The clock goes back by an hour when the runner that holds a batch has just died."""
    monkeypatch.setattr(held_batches, "HOLD_SECONDS", 1.5)
    batch_id = await gateway.begin(line("a"))
    assert await gateway.store.held.claim("dead", {}) is not None
    now = time.time
    monkeypatch.setattr(held_batches.time, "time", lambda: now() - 3600)
    assert await gateway.store.held.claim("other", {}) is None
    async with gateway.running(), asyncio.timeout(60):
        batch = await gateway.ended(batch_id)
    assert batch["request_counts"]["completed"] == 1


async def test_a_clock_that_is_set_forward_takes_nothing_from_a_runner(
    gateway: Storing, monkeypatch
) -> None:
    await gateway.begin(line("a"))
    assert await gateway.store.held.claim("working", {}) is not None
    now = time.time
    monkeypatch.setattr(held_batches.time, "time", lambda: now() + 3600)
    assert await gateway.store.held.claim("other", {}) is None


async def _nothing(_: str) -> None:
    return


async def test_an_answer_stands_once(gateway: Storing) -> None:
    batch_id = await gateway.begin(line("a"))
    batches = gateway.store.held
    assert not await batches.answer("one", batch_id, 0, '{"zeroth": 0}', ok=True)
    await batches.claim("one", {})
    assert await batches.answer("one", batch_id, 0, '{"first": 1}', ok=True)
    assert await batches.answer("one", batch_id, 0, '{"second": 2}', ok=False)
    assert list(batches.lines(batch_id, ok=True)) == [b'{"first": 1}\n']
    assert list(batches.lines(batch_id, ok=False)) == []


async def test_one_runner_holds_a_batch(gateway: Storing, monkeypatch) -> None:
    batch_id = await gateway.begin(line("a"))
    batches = gateway.store.held
    claimed = await batches.claim("one", {})
    assert claimed is not None
    assert claimed.record.id == batch_id
    assert await batches.claim("two", {}) is None
    assert await batches.hold("two", batch_id) is None
    assert await batches.hold("one", batch_id) == "validating"
    await batches.let_go("one")
    assert (await batches.claim("two", {})).record.id == batch_id  # type: ignore[union-attr]
    assert await batches.hold("one", batch_id) is None
    # Whoever wakes to find that another has it changes nothing.
    late = (batches.begin("one", batch_id, 1), batches.finalize("one", batch_id))
    assert [await each for each in late] == [False, False]
    assert not await batches.refuse("one", batch_id, [])
    assert not await batches.end("one", claimed, "completed", RequestCounts(1, 1, 0), [])
    assert (await gateway.batch(batch_id))["status"] == "validating"


async def test_no_runner_takes_its_own_batch_twice(gateway: Storing, monkeypatch) -> None:
    """It was frozen for longer than it may hold it, and wakes."""
    batch_id = await gateway.begin(line("a"))
    claimed = await gateway.store.held.claim("one", {})
    later = time.time() + 1000
    monkeypatch.setattr("penstock_gateway.storage.held_batches.time.time", lambda: later)
    assert await gateway.store.held.claim("one", {batch_id: claimed.owner}) is None
    assert await gateway.store.held.hold("one", batch_id) == "validating"


async def test_who_has_fewest_at_work_is_next(tmp_path: Path, engine: FakeEngineClient) -> None:
    keys = write(tmp_path / "keys.json", key(ALICE), key(BOB))
    config = GatewayConfig(api_keys=keys)
    async with storing(tmp_path / "data", engine, config=config) as gateway:
        for _ in range(2):
            await gateway.begin(line("a"), bearer(ALICE))
        await gateway.begin(line("a"), bearer(BOB))
        batches = gateway.store.held
        owners: list[str] = []
        busy: dict[str, str] = {}
        for _ in range(3):
            work = await batches.claim("runner", busy)
            assert work is not None
            busy[work.record.id] = work.owner
            owners.append(work.owner)
        assert owners[0] != owners[1]


async def test_the_key_must_still_be_known(tmp_path: Path, engine: FakeEngineClient) -> None:
    file = tmp_path / "keys.json"
    config = GatewayConfig(api_keys=write(file, key(ALICE, tenant="team"), key(BOB, tenant="team")))
    async with storing(tmp_path / "data", engine, config=config) as gateway:
        batch_id = await gateway.begin(line("a"), bearer(ALICE))
        write(file, key(BOB, tenant="team"))
        gateway.app.state.service.ring.reload()
        async with gateway.running():
            batch = await gateway.ended(batch_id, bearer(BOB))
        assert batch["request_counts"] == {"total": 1, "completed": 0, "failed": 1}
        (told,) = await gateway.results(batch["error_file_id"], bearer(BOB))
        assert told["error"]["code"] == "invalid_api_key"
        assert not engine.terms


async def test_a_key_keeps_to_its_models(tmp_path: Path, engine: FakeEngineClient) -> None:
    keys = write(tmp_path / "keys.json", key(ALICE, models=["other"]))
    async with (
        storing(tmp_path / "data", engine, config=GatewayConfig(api_keys=keys)) as gateway,
        gateway.running(),
    ):
        batch = await gateway.ended(await gateway.begin(line("a"), bearer(ALICE)), bearer(ALICE))
        (told,) = await gateway.results(batch["error_file_id"], bearer(ALICE))
        assert told["response"]["status_code"] == 403


async def test_an_owner_without_keys_is_the_tenant(gateway: Storing) -> None:
    headers = {"authorization": "Bearer whatever"}
    async with gateway.running():
        batch = await gateway.ended(await gateway.begin(line("a"), headers), headers)
    assert batch["status"] == "completed"
    tenant = gateway.engine.terms[0].tenant
    await gateway.http.post("/v1/completions", json={"prompt": "a"}, headers=headers)
    assert gateway.engine.terms[1].tenant == tenant != ""


async def test_cancelled_before_anybody_took_it(gateway: Storing) -> None:
    batch_id = await gateway.begin(line("a"))
    answer = await gateway.http.post(f"/v1/batches/{batch_id}/cancel")
    assert answer.json()["status"] == "cancelling"
    async with gateway.running():
        batch = await gateway.ended(batch_id)
    assert (batch["status"], batch["output_file_id"]) == ("cancelled", None)
    again = await gateway.http.post(f"/v1/batches/{batch_id}/cancel")
    assert again.json()["status"] == "cancelled"


async def test_one_that_has_ended_is_not_cancelled(gateway: Storing) -> None:
    async with gateway.running():
        batch_id = await gateway.begin(line("a"))
        await gateway.ended(batch_id)
    answer = await gateway.http.post(f"/v1/batches/{batch_id}/cancel")
    assert answer.status_code == 409
    assert "completed" in answer.json()["error"]["message"]


async def test_lists_the_latest_first(gateway: Storing) -> None:
    made = [await gateway.begin(line("a")) for _ in range(3)]
    listed = (await gateway.http.get("/v1/batches", params={"limit": 2})).json()
    rest = (await gateway.http.get("/v1/batches", params={"after": listed["last_id"]})).json()
    assert listed["has_more"]
    assert not rest["has_more"]
    assert {each["id"] for each in listed["data"] + rest["data"]} == set(made)
    for limit in ("0", "101", "x", "1e3", "٣"):
        wrong = await gateway.http.get("/v1/batches", params={"limit": limit})
        assert wrong.status_code == 400


async def test_a_file_that_is_lost_ends_the_batch(gateway: Storing, tmp_path: Path) -> None:
    batch_id = await gateway.begin(line("a"))
    for path in (tmp_path / "data" / "files").iterdir():
        path.unlink()
    async with gateway.running():
        batch = await gateway.ended(batch_id)
    assert batch["status"] == "failed"
    assert batch["errors"]["data"][0]["code"] == "file_not_found"


async def test_chat_too(gateway: Storing) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    url = "/v1/chat/completions"
    content = json.dumps({"custom_id": "a", "url": url, "body": body, "method": "POST"}).encode()
    async with gateway.running():
        batch = await gateway.ended(await gateway.begin(content, endpoint=url))
    (found,) = await gateway.results(batch["output_file_id"])
    assert found["response"]["body"]["object"] == "chat.completion"


async def test_a_limit_has_few_digits(gateway: Storing) -> None:
    """Its bound is checked of the number that counts."""
    for path, limit in (("batches", "0000000019999"), ("files", "000000001" + "9" * 5000)):
        wrong = await gateway.http.get(f"/v1/{path}", params={"limit": limit})
        assert wrong.status_code == 400


async def test_a_wrong_file_ends_a_batch_that_comes_too_late(gateway: Storing) -> None:
    """Its window was over before anybody looked at the file."""
    batch_id = await gateway.begin(line("a") + b"nonsense\n", completion_window="1s")
    await asyncio.sleep(1.1)
    async with gateway.running():
        batch = await asyncio.wait_for(gateway.ended(batch_id), 60)
    assert batch["status"] == "failed"
    assert batch["errors"]["data"][0]["line"] == 2


async def test_lines_of_a_batch_that_comes_too_late(gateway: Storing) -> None:
    batch_id = await gateway.begin(line("a") + line("b"), completion_window="1s")
    await asyncio.sleep(1.1)
    gateway.engine.script = lambda prompt, params: iter([1000.0])
    async with gateway.running():
        batch = await asyncio.wait_for(gateway.ended(batch_id), 60)
    assert batch["status"] == "expired"
    assert batch["request_counts"] == {"total": 2, "completed": 0, "failed": 2}


async def test_a_runner_outlives_its_database(gateway: Storing, monkeypatch) -> None:
    """A disk that is full, or a database that is started again, ends no process."""
    claim, calls = gateway.store.held.claim, itertools.count()

    async def failing(runner: str, busy: Any) -> Any:
        if next(calls) < 2:
            raise OperationalError("BEGIN", {}, Exception("database or disk is full"))
        return await claim(runner, busy)

    monkeypatch.setattr(gateway.store.held, "claim", failing)
    async with gateway.running():
        batch = await asyncio.wait_for(gateway.ended(await gateway.begin(line("a"))), 10)
    assert batch["status"] == "completed"


async def test_cancelled_while_its_file_is_read(gateway: Storing, monkeypatch) -> None:
    """It ends then, not when its runner's time with it is over."""
    begin = gateway.store.held.begin

    async def late(runner: str, batch_id: str, total: int) -> bool:
        await gateway.http.post(f"/v1/batches/{batch_id}/cancel")
        return await begin(runner, batch_id, total)

    monkeypatch.setattr(gateway.store.held, "begin", late)
    async with gateway.running():
        batch = await asyncio.wait_for(gateway.ended(await gateway.begin(line("a"))), 10)
    assert batch["status"] == "cancelled"


async def test_cancelled_while_an_answer_is_recorded(gateway: Storing, monkeypatch) -> None:
    """The database's thread records it whether or not its batch is cancelled meanwhile: the files
    hold it, as the counts do."""
    answer, hold = gateway.store.held.answer, gateway.store.held.hold
    cancelling = asyncio.Event()

    async def in_a_thread(*of: Any, **ok: bool) -> bool:
        await cancelling.wait()
        await asyncio.sleep(0.2)  # In which the files could be written.
        return await answer(*of, **ok)

    async def late(*of: Any, **ok: bool) -> bool:
        recording = asyncio.create_task(in_a_thread(*of, **ok))
        await gateway.http.post(f"/v1/batches/{batch_id}/cancel")
        return await asyncio.shield(recording)

    async def told(*of: str) -> str | None:
        status = await hold(*of)
        if status == "cancelling":
            cancelling.set()
        return status

    monkeypatch.setattr(gateway.store.held, "answer", late)
    monkeypatch.setattr(gateway.store.held, "hold", told)
    batch_id = await gateway.begin(line("a"))
    async with gateway.running():
        batch = await asyncio.wait_for(gateway.ended(batch_id), 10)
    assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    assert [each["custom_id"] for each in await gateway.results(batch["output_file_id"])] == ["a"]


async def test_lines_that_may_not_be_asked_yet_hold_up_no_other_batch(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    """A key has used up what it may ask in a minute; another hasn't."""
    keys = write(tmp_path / "keys.json", key(ALICE, requests_per_minute=1), key(BOB))
    config = GatewayConfig(api_keys=keys)
    folder = tmp_path / "data"
    async with (
        storing(folder, engine, config=config, batch_concurrency=2) as gateway,
        gateway.running(),
    ):
        many = b"".join(line(str(number)) for number in range(6))
        limited = await gateway.begin(many, bearer(ALICE))
        while (await gateway.batch(limited, bearer(ALICE)))["request_counts"]["completed"] < 1:
            await asyncio.sleep(0.01)
        other = await gateway.begin(many, bearer(BOB))
        batch = await asyncio.wait_for(gateway.ended(other, bearer(BOB)), 10)
        assert batch["request_counts"]["completed"] == 6
        assert (await gateway.batch(limited, bearer(ALICE)))["status"] == "in_progress"


async def test_batches_that_only_wait_hold_up_no_other(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    """However many of them a tenant has."""
    keys = write(tmp_path / "keys.json", key(ALICE, requests_per_minute=1), key(BOB))
    config = GatewayConfig(api_keys=keys)
    async with (
        storing(tmp_path / "data", engine, config=config, max_open_batches=100) as gateway,
        gateway.running(),
    ):
        two = line("a") + line("b")
        waiting = [await gateway.begin(two, bearer(ALICE)) for _ in range(OF_OWNER + 4)]
        while len(await at_work(gateway, waiting)) < OF_OWNER:
            await asyncio.sleep(0.01)
        other = await gateway.begin(two, bearer(BOB))
        batch = await asyncio.wait_for(gateway.ended(other, bearer(BOB)), 10)
        assert batch["request_counts"]["completed"] == 2
        assert len(await at_work(gateway, waiting)) == OF_OWNER


async def at_work(gateway: Storing, batches: list[str]) -> list[str]:
    states = [(await gateway.batch(each, bearer(ALICE)))["status"] for each in batches]
    return [status for status in states if status == "in_progress"]


async def test_who_may_store_nothing_more_gets_no_results(
    tmp_path: Path, engine: FakeEngineClient
) -> None:
    """Who has used up what it may store gets no further results stored."""
    async with storing(tmp_path / "data", engine, max_stored_files=2) as gateway:
        file = (await gateway.upload(line("a"))).json()["id"]
        body = {"input_file_id": file, "endpoint": "/v1/completions"}
        async with gateway.running():
            made = await gateway.http.post("/v1/batches", json=body)
            await gateway.ended(made.json()["id"])
        refused = await gateway.http.post("/v1/batches", json=body)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "storage_full"
