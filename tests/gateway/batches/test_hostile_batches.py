"""Files and batches that nobody sends by mistake. tests/ATTACKS.md lists them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from tests.gateway.batches.storing import Storing, line, storing
from tests.gateway.fake_engine import FakeEngineClient, say
from tests.gateway.keyring import ALICE, BOB, bearer, key, write

URL = "/v1/completions"


@pytest.fixture
async def gateway(tmp_path: Path, engine: FakeEngineClient) -> AsyncIterator[Storing]:
    async with storing(tmp_path, engine) as gateway:
        yield gateway


@pytest.fixture
async def tenants(tmp_path: Path, engine: FakeEngineClient) -> AsyncIterator[Storing]:
    """A gateway that knows two keys, of two tenants."""
    engine.script = say("Yes.")
    config = GatewayConfig(api_keys=str(write(tmp_path / "keys.json", key(ALICE), key(BOB))))
    more: dict[str, Any] = {"config": config, "stored_response_hours": 1}
    async with storing(tmp_path / "data", engine, **more) as gateway:
        yield gateway


async def failed(gateway: Storing, content: bytes) -> dict[str, Any]:
    async with gateway.running():
        batch = await gateway.ended(await gateway.begin(content))
    assert batch["status"] == "failed"
    assert not gateway.engine.terms
    return batch


async def test_errors_have_a_bound(gateway: Storing) -> None:
    batch = await failed(gateway, b"nonsense\n" * 5000)
    assert len(batch["errors"]["data"]) <= 100


async def test_nested_lines(gateway: Storing) -> None:
    deep = b"[" * 40_000 + b"]" * 40_000
    body = b'{"custom_id": "a", "url": "%s", "body": {"prompt": %s}}\n' % (URL.encode(), deep)
    batch = await failed(gateway, body)
    assert batch["errors"]["data"][0]["line"] == 1


async def test_no_text_ends_a_line_of_the_results(gateway: Storing) -> None:
    """Many readers end one at any of the characters by which Unicode does."""
    text, id = "one\u2028two\u2029three\x85four\x0b\x0c\x1c👋", "a\u2028b\x85"
    gateway.engine.script = say(text)
    async with gateway.running():
        batch = await gateway.ended(await gateway.begin(line(id)))
    (found,) = await gateway.results(batch["output_file_id"])
    assert found["custom_id"] == id
    assert found["response"]["body"]["choices"][0]["text"] == f"{text}0"


@pytest.mark.parametrize("field", ["stream", "background"])
async def test_lines_that_would_outlive_their_batch(gateway: Storing, field: str) -> None:
    batch = await failed(gateway, line("a", **{field: True}))
    assert batch["errors"]["data"][0]["param"] == f"body.{field}"


async def test_names_reach_no_header(gateway: Storing) -> None:
    name = 'a"; x=1%0d%0aset-cookie: a=b'
    head = f'--b\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    purpose = b'\r\n--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'
    headers = {"content-type": "multipart/form-data; boundary=b"}
    answer = await gateway.http.post(
        "/v1/files", content=head.encode() + line("a") + purpose, headers=headers
    )
    if answer.status_code == 400:
        return  # Such a form is none.
    content = await gateway.http.get(f"/v1/files/{answer.json()['id']}/content")
    for got in (answer, content):
        assert got.status_code == 200
        assert "set-cookie" not in str(got.headers).lower()


async def test_results_are_the_tenants_own(tenants: Storing) -> None:
    async with tenants.running():
        batch = await tenants.begin(line("a"), bearer(ALICE))
        while (done := await seen(tenants, f"/v1/batches/{batch}"))["status"] != "completed":
            await asyncio.sleep(0.01)
    output = done["output_file_id"]
    for path in (f"/v1/files/{output}", f"/v1/files/{output}/content"):
        assert (await tenants.http.get(path, headers=bearer(ALICE))).status_code == 200
        assert (await tenants.http.get(path, headers=bearer(BOB))).status_code == 404
    listed = await tenants.http.get("/v1/files?purpose=batch_output", headers=bearer(BOB))
    assert listed.json()["data"] == []


async def seen(gateway: Storing, path: str) -> dict[str, Any]:
    answer = await gateway.http.get(path, headers=bearer(ALICE))
    assert answer.status_code == 200, answer.text
    return dict(json.loads(answer.content))


async def test_a_chosen_id_is_its_tenants_own(tenants: Storing) -> None:
    async def ask(said: str, who: str) -> httpx.Response:
        body = {"input": said, "request_id": "mine"}
        return await tenants.http.post("/v1/responses", json=body, headers=bearer(who))

    ids = {(await ask("Alice's", ALICE)).json()["id"], (await ask("Bob's", BOB)).json()["id"]}
    assert len(ids) == 1
    [id] = ids
    for who, said in ((ALICE, b"Alice's"), (BOB, b"Bob's")):
        body = {"input": "And?", "previous_response_id": id}
        answer = await tenants.http.post("/v1/responses", json=body, headers=bearer(who))
        assert answer.status_code == 200
        assert said in bytes(tenants.engine.submitted[-1][0])
    gone = await tenants.http.delete(f"/v1/responses/{id}", headers=bearer(BOB))
    assert gone.status_code == 200
    kept = await tenants.http.get(f"/v1/responses/{id}", headers=bearer(ALICE))
    assert kept.status_code == 200
