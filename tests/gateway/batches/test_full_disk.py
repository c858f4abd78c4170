"""A data folder on a file system that is full: a real one, of a few megabytes."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.batches.storing import Storing, storing
from tests.gateway.fake_engine import FakeEngineClient, say

pytestmark = pytest.mark.timeout(120)

URL = "/v1/responses"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"a file system can't be mounted here: {made.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def fill(folder: Path) -> None:
    with (folder / "other").open("ab", 0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


async def answer(gateway: Storing, **fields: object) -> tuple[int, dict[str, Any]]:
    body = {"input": "Hi", "max_output_tokens": 8, **fields}
    reply = await gateway.http.post(URL, json=body)
    return reply.status_code, reply.json()


@pytest.mark.parametrize("restarted", [False, True])
async def test_on_a_full_disk_what_is_there_is_read_and_deleted(
    small: Path, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngineClient(say("Yes."))
    settings = {"stored_response_hours": 1}
    async with storing(small, engine, **settings) as gateway:
        file = (await gateway.upload(b"{}")).json()
        _, kept = await answer(gateway)
        fill(small)
        if not restarted:
            await on_a_full_disk(gateway, file["id"], str(kept["id"]), caplog)
    if restarted:
        async with storing(small, engine, **settings) as gateway:
            await on_a_full_disk(gateway, file["id"], str(kept["id"]), caplog)


async def on_a_full_disk(
    gateway: Storing, file: str, response: str, caplog: pytest.LogCaptureFixture
) -> None:
    http = gateway.http
    big = "x" * 100
    for _ in range(30):  # However much there may be in the journal yet.
        status, unkept = await answer(gateway, input=big)
        assert status == 200
    assert unkept["store"] is False
    assert (await http.get(f"{URL}/{unkept['id']}")).status_code == 404
    status, refused = await answer(gateway, input=big, store=True)
    assert status == 503
    assert "full" in str(refused["error"])
    await streams_say_the_same(gateway, big)
    assert (await http.get(f"{URL}/{response}")).json()["id"] == response
    assert [each["id"] for each in (await http.get("/v1/files")).json()["data"]] == [file]
    assert (await http.get(f"/v1/files/{file}/content")).content == b"{}"
    status, more = await answer(gateway, previous_response_id=response)
    assert status == 200, more
    with caplog.at_level(logging.ERROR):
        assert (await http.delete(f"{URL}/{response}")).json()["deleted"] is True
        assert (await http.delete(f"/v1/files/{file}")).json()["deleted"] is True
    assert (await http.get(f"{URL}/{response}")).status_code == 404
    told = [each for each in caplog.records if "database doesn't answer" in each.getMessage()]
    assert len(told) == 1


async def streams_say_the_same(gateway: Storing, text: str) -> None:
    """A stream that began as one that will be stored ends as one that wasn't, or fails where the
    request demanded it; either way with all of its text, and without a gap."""
    _, whole = await answer(gateway, input=text, store=False)
    said = whole["output"][0]["content"][0]["text"]
    for demanded in (False, True):
        events = await streamed(gateway, input=text, **({"store": True} if demanded else {}))
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        deltas = (event["delta"] for event in events if event["type"].endswith("text.delta"))
        assert "".join(deltas) == said
        assert events[0]["response"]["store"] is True
        last = events[-1]["response"]
        assert last["store"] is False
        assert (await gateway.http.get(f"{URL}/{last['id']}")).status_code == 404
        kinds = [event["type"] for event in events]
        if demanded:
            assert kinds[-2:] == ["error", "response.failed"]
            assert "full" in last["error"]["message"]
        else:
            assert kinds.count("response.completed") == 1
            assert last["output"][0]["content"][0]["text"] == said
            assert not {"error", "response.failed"} & set(kinds)


async def streamed(gateway: Storing, **fields: object) -> list[dict[str, Any]]:
    body = {"stream": True, "max_output_tokens": 8, **fields}
    reply = await gateway.http.post(URL, json=body)
    assert reply.status_code == 200
    lines = reply.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
