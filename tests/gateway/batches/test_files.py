"""/v1/files: what goes in comes out, and only for its owner, within bounds."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock.errors import PenstockError, StartupError
from penstock_gateway.app import create_app
from penstock_gateway.storage import database
from penstock_gateway.storage.contents import FolderContents
from penstock_gateway.storage.database import Database
from tests.gateway.batches.storing import Storing, line, storing
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.keyring import ALICE, BOB, bearer, key, write


@pytest.fixture
async def gateway(tmp_path: Path, engine: FakeEngineClient) -> AsyncIterator[Storing]:
    async with storing(
        tmp_path / "data", engine, max_file_bytes=300_000, max_stored_bytes=1_000_000
    ) as gateway:
        yield gateway


async def test_what_goes_in_comes_out(gateway: Storing) -> None:
    content = b"".join(line(f"line-{number}") for number in range(1000))
    made = (await gateway.upload(content)).json()
    assert made["object"] == "file"
    assert (made["bytes"], made["filename"]) == (len(content), "requests.jsonl")
    assert (made["purpose"], made["status"]) == ("batch", "processed")
    assert abs(made["created_at"] - time.time()) < 60
    assert (await gateway.http.get(f"/v1/files/{made['id']}")).json() == made
    got = await gateway.http.get(f"/v1/files/{made['id']}/content")
    assert got.content == content
    assert got.headers["content-length"] == str(len(content))


async def test_files_are_private(gateway: Storing, tmp_path: Path) -> None:
    await gateway.upload(line("a"))
    made = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert made
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600}


async def test_lists_in_pages(gateway: Storing) -> None:
    ids = [(await gateway.upload(line(str(number)))).json()["id"] for number in range(5)]
    listed = (await gateway.http.get("/v1/files")).json()
    assert not listed["has_more"]
    assert sorted(each["id"] for each in listed["data"]) == sorted(ids)
    order = [each["id"] for each in listed["data"]]
    for direction, wanted in (("desc", order), ("asc", order[::-1])):
        seen, after = [], None
        while True:
            query = {"limit": 2, "order": direction} | ({"after": after} if after else {})
            page = (await gateway.http.get("/v1/files", params=query)).json()
            seen += [each["id"] for each in page["data"]]
            assert (page["first_id"], page["last_id"]) == (seen[-len(page["data"])], seen[-1])
            if not page["has_more"]:
                break
            after = page["last_id"]
        assert seen == wanted
    # Who deletes a page and asks for the next one isn't told that there is none.
    await gateway.http.delete(f"/v1/files/{order[1]}")
    gone = await gateway.http.get("/v1/files", params={"after": order[1]})
    assert (gone.status_code, gone.json()["error"]["param"]) == (400, "after")
    assert "which is no file" in gone.json()["error"]["message"]
    none = (await gateway.http.get("/v1/files", params={"purpose": "batch_output"})).json()
    assert (none["data"], none["first_id"]) == ([], None)


async def test_delete(gateway: Storing, tmp_path: Path) -> None:
    made = (await gateway.upload(line("a"))).json()["id"]
    gone = await gateway.http.delete(f"/v1/files/{made}")
    assert gone.json() == {"id": made, "object": "file", "deleted": True}
    assert (await gateway.http.get(f"/v1/files/{made}")).status_code == 404
    assert list((tmp_path / "data" / "files").iterdir()) == []


async def test_one_that_a_batch_reads_stays(gateway: Storing) -> None:
    batch = await gateway.begin(line("a"))
    file = (await gateway.batch(batch))["input_file_id"]
    answer = await gateway.http.delete(f"/v1/files/{file}")
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "file_in_use"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"expires_after[anchor]": "created_at"}, "expires_after"),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after"),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "5"},
            "expires_after[seconds]",
        ),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_wrong_forms(
    gateway: Storing, tmp_path: Path, fields: dict[str, str], param: str
) -> None:
    answer = await gateway.upload(line("a"), **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert list((tmp_path / "data" / "files").iterdir()) == []


async def test_no_file_and_an_empty_one(gateway: Storing) -> None:
    missing = await gateway.http.post(
        "/v1/files", data={"purpose": "batch"}, files={"other": (None, b"x")}
    )
    assert missing.status_code == 400
    assert missing.json()["error"]["param"] == "file"
    empty = await gateway.upload(b"")
    assert empty.status_code == 400
    assert "empty" in empty.json()["error"]["message"]


async def test_files_are_bounded_each_and_together(gateway: Storing, tmp_path: Path) -> None:
    too_large = await gateway.upload(b"x" * 300_001)
    assert too_large.status_code == 413
    assert "300000 bytes" in too_large.json()["error"]["message"]
    for _ in range(3):
        assert (await gateway.upload(b"x" * 300_000)).status_code == 200
    full = await gateway.upload(b"x" * 150_000)
    assert full.status_code == 429
    assert "1000000 bytes in total" in full.json()["error"]["message"]
    assert len(list((tmp_path / "data" / "files").iterdir())) == 3


async def test_number_of_files(tmp_path: Path, engine: FakeEngineClient) -> None:
    async with storing(tmp_path, engine, max_stored_files=2) as gateway:
        assert [(await gateway.upload(line("a"))).status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../penstock.db",
        "file-",
        "file-" + "z" * 32,
        "%2e%2e%2fpenstock.db",
        "a" * 9999,
        "%ff",
        "%00",
    ],
)
async def test_ids_are_no_paths(gateway: Storing, name: str) -> None:
    for path in (f"/v1/files/{name}", f"/v1/files/{name}/content"):
        answer = await gateway.http.get(path)
        assert answer.status_code == 404
        assert "SQLite" not in answer.text


def test_contents_take_no_other_names(tmp_path: Path) -> None:
    contents = FolderContents(tmp_path)
    for name in ("", ".", "..", "../x", "file-" + "0" * 31, "file-" + "0" * 32 + "/x", "a/b"):
        with pytest.raises(ValueError, match="not a file id"):
            contents.path(name)


async def test_a_clients_name_is_only_a_name(gateway: Storing) -> None:
    answer = await gateway.http.post(
        "/v1/files",
        files={"file": ("../../etc/passwd", line("a"))},
        data={"purpose": "batch"},
    )
    made = answer.json()
    assert made["filename"] == "../../etc/passwd"
    assert (await gateway.http.get(f"/v1/files/{made['id']}/content")).content == line("a")


async def test_nobody_sees_anothers_files(tmp_path: Path, engine: FakeEngineClient) -> None:
    keys = write(tmp_path / "keys.json", key(ALICE), key(BOB))
    config = GatewayConfig(api_keys=keys)
    async with storing(tmp_path / "data", engine, config=config) as gateway:
        made = (await gateway.upload(line("a"), bearer(ALICE))).json()["id"]
        batch = await gateway.begin(line("a"), bearer(ALICE))
        for path in (f"/v1/files/{made}", f"/v1/files/{made}/content", f"/v1/batches/{batch}"):
            assert (await gateway.http.get(path, headers=bearer(ALICE))).status_code == 200
            assert (await gateway.http.get(path, headers=bearer(BOB))).status_code == 404
            assert (await gateway.http.get(path)).status_code == 401
        for path in ("/v1/files", "/v1/batches"):
            assert (await gateway.http.get(path, headers=bearer(BOB))).json()["data"] == []
        for path in (f"/v1/files?after={made}", f"/v1/batches?after={batch}"):
            assert (await gateway.http.get(path, headers=bearer(BOB))).status_code == 400
        theirs = await gateway.http.delete(f"/v1/files/{made}", headers=bearer(BOB))
        assert theirs.status_code == 404
        stopped = await gateway.http.post(f"/v1/batches/{batch}/cancel", headers=bearer(BOB))
        assert stopped.status_code == 404
        body = {"input_file_id": made, "endpoint": "/v1/completions"}
        used = await gateway.http.post("/v1/batches", json=body, headers=bearer(BOB))
        assert used.status_code == 404


async def test_what_expires_is_gone(gateway: Storing, tmp_path: Path, monkeypatch) -> None:
    life = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    made = (await gateway.upload(line("a"), **life)).json()
    assert made["expires_at"] == made["created_at"] + 3600
    later = time.time() + 3601
    monkeypatch.setattr("penstock_gateway.storage.file_records.time.time", lambda: later)
    assert (await gateway.http.get(f"/v1/files/{made['id']}")).status_code == 404
    assert (await gateway.http.get("/v1/files")).json()["data"] == []
    async with gateway.running():
        while list((tmp_path / "data" / "files").iterdir()):
            await asyncio.sleep(0.01)


async def test_a_server_without_a_folder_says_so(engine: FakeEngineClient) -> None:
    app = create_app(engine, GatewayConfig())  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        for path in ("/v1/files", "/v1/batches", "/v1/files/file-1"):
            answer = await http.get(path)
            assert answer.status_code == 404
            assert "--data-dir" in answer.json()["error"]["message"]


def test_a_database_of_another_layout_is_refused(tmp_path: Path) -> None:
    import sqlite3

    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    Database(url).close()
    with sqlite3.connect(tmp_path / "penstock.db") as connection:
        connection.execute("UPDATE penstock_layout SET version = 99")
    connection.close()
    with pytest.raises(StartupError, match="layout 99"):
        Database(url)


def test_a_folder_that_can_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="--data-dir"):
        FolderContents(tmp_path / "file" / "files")
    with pytest.raises(StartupError, match="--data-dir"):
        Database(f"sqlite:///{tmp_path / 'file' / 'penstock.db'}")


def test_a_disk_that_is_full_at_the_start_is_told_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "penstock.db"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(PenstockError, match=f"^--data-dir: {file} can't be used: "):
            Database(f"sqlite:///{file}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    Database(f"sqlite:///{file}").close()


async def test_a_full_disk_is_told_and_leaves_nothing(gateway: Storing, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        answer = await gateway.upload(b"x" * 250_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "storage_unavailable"
    assert list((tmp_path / "data" / "files").iterdir()) == []


async def test_uploads_side_by_side_keep_to_the_bound(gateway: Storing, tmp_path: Path) -> None:
    """Each would have fitted by itself."""
    uploads = [gateway.upload(b"x" * 290_000) for _ in range(8)]
    statuses = [answer.status_code for answer in await asyncio.gather(*uploads)]
    assert sorted(statuses) == [200] * 3 + [429] * 5
    assert len(list((tmp_path / "data" / "files").iterdir())) == 3


def test_a_database_without_an_answer_now_is_no_final_failure(tmp_path: Path, monkeypatch) -> None:
    """Or the restart of one process, while it has none, would end the system."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.01)
    file = tmp_path / "penstock.db"
    Database(f"sqlite:///{file}").close()
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(PenstockError) as raised:
        Database(f"sqlite:///{file}")
    assert not isinstance(raised.value, StartupError)
    other.close()
    Database(f"sqlite:///{file}").close()


async def test_contents_that_are_lost_are_not_there(gateway: Storing, tmp_path: Path) -> None:
    made = (await gateway.upload(line("a"))).json()
    (tmp_path / "data" / "files" / made["id"]).unlink()
    answer = await gateway.http.get(f"/v1/files/{made['id']}/content")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "file_not_found"


async def test_a_database_without_an_answer_now_is_told(
    tmp_path: Path, engine: FakeEngineClient, monkeypatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.01)
    async with storing(tmp_path, engine) as gateway:
        other = sqlite3.connect(tmp_path / "penstock.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert (await gateway.http.get("/v1/files")).status_code == 200  # Who reads needn't wait.
        answer = await gateway.upload(b"{}")
        other.close()
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "storage_unavailable"
        assert "retry-after" in answer.headers
        assert (await gateway.http.get("/v1/files")).status_code == 200
