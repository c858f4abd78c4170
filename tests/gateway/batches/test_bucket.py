"""Files in an S3-compatible store: the same as in a folder, and what only a network does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import StorageSettings
from penstock.errors import StartupError
from penstock_gateway.storage import bucket_contents, holds
from penstock_gateway.storage.store import Store
from tests.gateway.batches.object_store import ObjectStore, named, object_store
from tests.gateway.batches.storing import Storing, line, storing
from tests.gateway.fake_engine import FakeEngineClient

pytest.importorskip("boto3", reason="no boto3: pip install 'penstock-llm[s3]'")

URL = "s3://bucket/some/place"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setattr(bucket_contents, "TRIES", 1)
    with object_store() as store:
        yield store


def settings(bucket: ObjectStore) -> dict[str, Any]:
    return {"files_url": URL, "s3_endpoint_url": bucket.url}


@pytest.fixture
async def gateway(
    bucket: ObjectStore, tmp_path: Path, engine: FakeEngineClient
) -> AsyncIterator[Storing]:
    async with storing(tmp_path / "data", engine, **settings(bucket)) as gateway:
        yield gateway


def on_the_disk(folder: Path) -> list[str]:
    return [path.name for path in (folder / "data").rglob("file-*")]


async def test_a_batch_from_and_into_the_store(
    gateway: Storing, bucket: ObjectStore, tmp_path: Path
) -> None:
    content = b"".join(line(str(number)) for number in range(100))
    async with gateway.running():
        batch = await gateway.ended(await gateway.begin(content))
    assert batch["status"] == "completed", batch["errors"]
    found = await gateway.results(batch["output_file_id"])
    assert [each["custom_id"] for each in found] == [str(number) for number in range(100)]
    kept = {batch["input_file_id"], batch["output_file_id"]}
    assert {path.rpartition("/")[2] for path in named(bucket, "/file-")} == kept
    assert bucket.objects[f"/bucket/some/place/{batch['input_file_id']}"][0] == content
    assert on_the_disk(tmp_path) == []
    for each in kept:
        gone = await gateway.http.delete(f"/v1/files/{each}")
        assert gone.status_code == 200
    assert named(bucket, "/file-") == []


async def test_a_large_file_goes_in_parts(gateway: Storing, bucket: ObjectStore) -> None:
    content = line("a", prompt="x" * 150_000) * 120
    made = await gateway.upload(content)
    assert made.status_code == 200
    got = await gateway.http.get(f"/v1/files/{made.json()['id']}/content")
    assert got.content == content
    assert not bucket.parts


async def test_a_store_without_an_answer_is_told(
    gateway: Storing, bucket: ObjectStore, tmp_path: Path
) -> None:
    kept = (await gateway.upload(line("a"))).json()["id"]
    bucket.failing = 500
    refused = await gateway.upload(line("b"))
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "storage_unavailable"
    assert refused.headers["retry-after"]
    read = await gateway.http.get(f"/v1/files/{kept}/content")
    assert read.status_code == 503
    bucket.failing = None
    assert (await gateway.http.get(f"/v1/files/{kept}/content")).content == line("a")
    listed = (await gateway.http.get("/v1/files")).json()["data"]
    assert [each["id"] for each in listed] == [kept]
    assert on_the_disk(tmp_path) == []


async def test_a_batch_waits_for_its_store(
    gateway: Storing, bucket: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Away, or broken off halfway: it is taken up again, and no line is lost."""
    monkeypatch.setattr(holds, "HOLD_SECONDS", 0.3)
    batch = await gateway.begin(line("a") + line("b"))
    async with gateway.running():
        bucket.failing = 503
        await asyncio.sleep(0.5)
        assert (await gateway.batch(batch))["status"] == "validating"
        bucket.failing, bucket.cut = None, True
        await asyncio.sleep(0.5)
        assert (await gateway.batch(batch))["status"] == "validating"
        bucket.cut = False
        done = await gateway.ended(batch)
    assert done["status"] == "completed"
    assert done["request_counts"] == {"total": 2, "completed": 2, "failed": 0}


async def test_what_is_gone_from_the_store_is_not_there(
    gateway: Storing, bucket: ObjectStore
) -> None:
    made = (await gateway.upload(line("a"))).json()["id"]
    del bucket.objects[f"/bucket/some/place/{made}"]
    assert (await gateway.http.get(f"/v1/files/{made}/content")).status_code == 404


async def test_what_no_record_leads_to_is_swept(
    gateway: Storing, bucket: ObjectStore, tmp_path: Path
) -> None:
    bucket.now = time.time() - 2 * bucket_contents.ABANDONED_SECONDS
    made = (await gateway.upload(line("a"))).json()["id"]
    old = [f"/bucket/some/place/file-{digit * 32}" for digit in "abcde"]
    others = ["/bucket/some/place/of-somebody", "/bucket/elsewhere/file-" + "a" * 32]
    for path in old + others:
        bucket.objects[path] = b"", bucket.now
    new = "/bucket/some/place/file-" + "f" * 32
    bucket.objects[new] = b"", time.time()
    async with gateway.running():
        while named(bucket, old[-1]):
            await asyncio.sleep(0.01)
    left = {f"/bucket/some/place/{made}", new, *others}
    assert left == set(bucket.objects) - {"/bucket/some/place/database-id"}


async def test_a_bucket_is_one_databases(
    gateway: Storing, bucket: ObjectStore, tmp_path: Path
) -> None:
    await gateway.upload(line("a"))
    other = StorageSettings(data_dir=str(tmp_path / "other"), **settings(bucket))
    with pytest.raises(StartupError, match=r"--files-url: s3://bucket/some/place holds the files"):
        Store(other, str(tmp_path / "other"))


async def test_without_keys_it_does_not_start(
    bucket: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    made = StorageSettings(data_dir=str(tmp_path), **settings(bucket))
    with pytest.raises(StartupError, match="credentials"):
        Store(made, str(tmp_path))
