"""/v1/batches and their runner, over a scripted engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import GatewayConfig
from tests.gateway.batches.storing import Storing, line, storing
from tests.gateway.fake_engine import MODEL, FakeEngineClient
from tests.gateway.keyring import ALICE, BOB, bearer, key, write


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
async def test_a_wrong_field_of_a_batch_is_named(
    gateway: Storing, body: dict[str, Any], param: str
) -> None:
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
    none = await gateway.http.get("/v1/batches", params={"after": "batch_x"})
    assert (none.status_code, none.json()["error"]["param"]) == (400, "after")
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
