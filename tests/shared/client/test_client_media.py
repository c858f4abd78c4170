"""What a front end does when an engine core asks it for prepared items."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import SamplingParams
from penstock.client import EngineClient
from penstock.client import media as media_module
from penstock.client.media import LARGE, MediaFiles, PreparedMedia
from penstock.client.routing import RoutingRequest, prefix_key
from penstock.errors import InvalidRequest
from penstock.media.item_names import PromptMedia
from penstock.process import logs
from penstock.protocol.from_frontend import MediaChunk, MediaFile, MediaLost
from penstock.protocol.media import Media, MediaItem, MediaSpan
from penstock.protocol.to_frontend import NeedMedia, Outputs, SequenceOutput
from testing.scripted_engine import ScriptedEngine
from tests.shared.client.client_requests import collect, until

PROMPT = list(b"look:....!")


def media_of(*contents: bytes) -> PromptMedia:
    """An item for each content, in one placeholder each, and what was prepared."""
    items = [
        MediaItem(
            hashlib.sha256(b"name" + data).hexdigest(),
            "image",
            1,
            len(data),
            hashlib.sha256(data).hexdigest(),
        )
        for data in contents
    ]
    spans = tuple(MediaSpan(number, 5 + number, 1) for number in range(len(items)))
    prepared = {item.name: data for item, data in zip(items, contents, strict=True)}
    return PromptMedia(Media(tuple(items), spans), prepared)


async def submitted(client: EngineClient, engine: ScriptedEngine, *contents: bytes) -> Any:
    """A task that submits, once the engine has accepted the request."""
    task = asyncio.create_task(
        client.submit(PROMPT, SamplingParams(max_tokens=9), name="m", media=media_of(*contents))
    )
    await until(lambda: engine.submits)
    return task


async def answer(engine: ScriptedEngine, asked: NeedMedia) -> Any:
    before = len(engine.media)
    engine.send(asked)
    await until(lambda: len(engine.media) > before)
    return engine.media[-1]


@pytest.mark.asyncio
async def test_an_item_is_a_file_until_the_request_ends(engine, client, tmp_path):
    task = await submitted(client, engine, b"first", b"second")
    [submit] = engine.submits
    assert [item.size for item in submit.media.items] == [5, 6]
    file, _ = await answer(engine, NeedMedia(submit.request, 1))
    assert isinstance(file, MediaFile)
    path = Path(file.path)
    assert path.is_relative_to(tmp_path / "media")
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert not task.done(), "it may still turn out to be of no use"
    engine.entered(submit)
    generation = await task
    engine.text(submit, "ok", finish="length")
    assert (await collect(generation))[0][0] == "ok"
    assert not path.exists()


@pytest.mark.asyncio
async def test_a_large_item_is_written_by_a_thread(engine, client, monkeypatch):
    threads = []

    def spied(path: Path, data: memoryview) -> None:
        threads.append(threading.current_thread())
        write(path, data)

    write = media_module._write
    monkeypatch.setattr(media_module, "_write", spied)
    data = bytes(range(256)) * (LARGE // 256)
    tasks = [await submitted(client, engine, data) for _ in range(2)]
    await until(lambda: len(engine.submits) == 2)
    for submit in engine.submits:
        engine.send(NeedMedia(submit.request, 0))
    await until(lambda: len(engine.media) == 2)
    paths = {file.path for file, _ in engine.media}
    assert len(paths) == 1
    (path,) = (Path(each) for each in paths)
    assert path.read_bytes() == data
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
    for submit in engine.submits:
        assert path.exists()
        engine.entered(submit)
        engine.text(submit, "ok", finish="length")
    for task in tasks:
        assert (await collect(await task))[0][0] == "ok"
    assert not path.exists()


@pytest.mark.asyncio
async def test_who_leaves_while_an_item_is_written_leaves_no_file(
    engine, client, tmp_path, monkeypatch
):
    begun, go_on = threading.Event(), threading.Event()

    def held_up(path: Path, data: memoryview) -> None:
        begun.set()
        go_on.wait(60)
        write(path, data)

    write = media_module._write
    monkeypatch.setattr(media_module, "_write", held_up)
    task = await submitted(client, engine, bytes(LARGE))
    engine.send(NeedMedia(engine.submits[0].request, 0))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    go_on.set()
    (session,) = client._fleet.sessions
    await until(lambda: not session._media.writing)
    name = media_of(bytes(LARGE)).media.items[0].name
    assert not list((tmp_path / "media").rglob(name))
    assert not engine.media


@pytest.mark.asyncio
async def test_parts_of_an_item_are_sent_as_asked_for(engine, client):
    data = bytes(range(256)) * 5000
    task = await submitted(client, engine, data)
    [submit] = engine.submits
    got = b""
    while len(got) < len(data):
        chunk, frames = await answer(engine, NeedMedia(submit.request, 0, len(got), True))
        assert isinstance(chunk, MediaChunk)
        assert (chunk.offset, chunk.size) == (len(got), len(frames[0]))
        assert chunk.size <= 1_048_576
        got += frames[0]
    assert got == data
    for wrong in (NeedMedia(submit.request, 7), NeedMedia(submit.request, 0, len(data), True)):
        assert isinstance((await answer(engine, wrong))[0], MediaLost)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.asyncio
async def test_a_new_engine_core_can_ask_again(engine, client, endpoint):
    await submitted(client, engine, b"bytes")
    await answer(engine, NeedMedia(engine.submits[0].request, 0))
    await engine.die()
    successor = ScriptedEngine(endpoint, boot=b"boot-two")
    try:
        await until(lambda: successor.submits)
        [again] = successor.submits
        assert again.media == engine.submits[0].media
        file, _ = await answer(successor, NeedMedia(again.request, 0))
        assert Path(file.path).read_bytes() == b"bytes"
    finally:
        await successor.die()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("code", "param"), [("invalid_media", "messages"), ("no_token_left", None)]
)
async def test_media_that_can_not_be_used_are_a_bad_request(engine, client, code, param):
    task = await submitted(client, engine, b"bytes")
    [submit] = engine.submits
    output = SequenceOutput(submit.request, 0, finish="error", error="it is bad", error_code=code)
    engine.send(Outputs([output]))
    with pytest.raises(InvalidRequest, match="it is bad") as caught:
        await task
    assert (caught.value.param, caught.value.code) == (param, code)


@pytest.mark.asyncio
async def test_nothing_is_left_of_a_client_that_closes(engine, client, tmp_path):
    task = await submitted(client, engine, b"bytes")
    file, _ = await answer(engine, NeedMedia(engine.submits[0].request, 0))
    await client.close()
    await asyncio.gather(task, return_exceptions=True)
    assert not Path(file.path).exists()
    assert list((tmp_path / "media").iterdir()) == []


def test_files_are_shared_and_those_of_the_dead_go(tmp_path: Path) -> None:
    killed = MediaFiles(tmp_path)
    left = killed.hold("0" * 64, memoryview(b"left"))
    assert left is not None
    assert killed._folder is not None
    os.close(killed._folder._lock)  # As the kernel does when the process is gone.
    files = MediaFiles(tmp_path)
    one = files.hold("1" * 64, memoryview(b"one"))
    assert one is not None
    assert not Path(left).exists()
    assert files.hold("1" * 64, memoryview(b"one")) == one
    files.release("1" * 64)
    assert Path(one).read_bytes() == b"one"
    files.release("1" * 64)
    assert not Path(one).exists()
    files.close()
    files.release("1" * 64)
    assert files.hold("2" * 64, memoryview(b"two")) is None


def test_prepared_bytes_must_be_there_and_whole() -> None:
    media = media_of(b"bytes")
    cut = {name: data[:4] for name, data in media.prepared.items()}
    with pytest.raises(InvalidRequest, match="no prepared bytes"):
        PreparedMedia(replace(media, prepared={}))
    with pytest.raises(InvalidRequest, match="has 4 prepared bytes; it says 5"):
        PreparedMedia(replace(media, prepared=cut))


def test_other_pictures_have_other_favourites() -> None:
    """Their KV blocks are others, too."""
    keys = {
        prefix_key(RoutingRequest([5] * 32, 128, media=media), 16)
        for media in (None, media_of(b"one").media, media_of(b"two").media)
    }
    assert len(keys) == 3
    behind = Media(media_of(b"one").media.items, (MediaSpan(0, 40, 1),))
    plain, later = (
        prefix_key(RoutingRequest([5] * 60, 32, media=media), 16) for media in (None, behind)
    )
    assert plain == later, "what lies behind the covered tokens doesn't count"


def test_items_for_which_there_is_no_room_are_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk each picture was one: any client could write the log."""
    monkeypatch.setattr(media_module, "_note_no_file", logs.Seldom(media_module.log.warning))
    files = MediaFiles(tmp_path)
    folder = files._make()
    assert folder is not None
    shutil.rmtree(folder.path)
    for number in range(20):
        assert files.hold(f"{number:064}", memoryview(b"item")) is None
    assert caplog.messages == ["an item can't be a file"]
    files.close()
