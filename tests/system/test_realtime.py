"""Speech to text over a WebSocket, by a plain client, as vLLM's examples speak it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from testing.serving import Server
from testing.trained.hearing import FOLDER
from testing.trained.hearing.exam import unheard, word_errors

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CHUNK = 6400
"""Bytes: 0.2 s."""


@pytest.fixture(scope="module")
def hearing() -> Iterator[Server]:
    with Server(str(FOLDER), "--num-kv-blocks", "512", "--max-media-seconds", "60") as server:
        yield server


def speech() -> tuple[bytes, str]:
    """Samples, with pauses, and what is said."""
    recordings = unheard(4, 1.2, 1) + unheard(2, 2.4, 2)
    silence = np.zeros(16_000, np.float32)
    samples = np.concatenate([part for each in recordings for part in (each.samples, silence)])
    noise = np.random.default_rng(0).normal(0, 1e-4, len(samples))
    words = " ".join(each.text for each in recordings)
    return ((samples + noise).clip(-1, 1) * 32767).astype("<i2").tobytes(), words


SPEECH, SAID = speech()


def opened(server: Server, **options: Any) -> connect:
    return connect(server.url.replace("http", "ws", 1) + "/v1/realtime", **options)


async def say(client: ClientConnection, kind: str, **fields: Any) -> None:
    await client.send(json.dumps({"type": kind, **fields}))


async def told(client: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await client.recv())
    return found


async def append(client: ClientConnection, samples: bytes, chunk: int = CHUNK) -> None:
    for at in range(0, len(samples), chunk):
        audio = base64.b64encode(samples[at : at + chunk]).decode()
        await say(client, "input_audio_buffer.append", audio=audio)


async def text_of(client: ClientConnection) -> tuple[str, list[str]]:
    """The text of an utterance, with its deltas."""
    deltas = []
    while (message := await told(client))["type"] == "transcription.delta":
        deltas.append(message["delta"])
    assert message["type"] == "transcription.done", message
    assert message["usage"] == {"type": "duration", "seconds": message["usage"]["seconds"]}
    return message["text"], deltas


async def transcribed(
    server: Server, *, chunk: int = CHUNK, between: Any = None
) -> tuple[str, list[str]]:
    async with opened(server) as client:
        assert (await told(client))["type"] == "session.created"
        await say(client, "session.update", model=server.model, language="en")
        await say(client, "input_audio_buffer.commit")
        half = len(SPEECH) // 2 // chunk * chunk
        await append(client, SPEECH[:half], chunk)
        if between is not None:
            await asyncio.to_thread(between)
        await append(client, SPEECH[half:], chunk)
        await say(client, "input_audio_buffer.commit", final=True)
        return await text_of(client)


async def test_what_is_said_comes_while_it_is_said(hearing: Server) -> None:
    text, deltas = await transcribed(hearing)
    assert "".join(deltas) == text
    assert len(deltas) > 3
    assert word_errors(SAID, text) <= 1
    others = [transcribed(hearing, chunk=chunk) for chunk in (640, 30_000, 500_000)]
    assert {each[0] for each in await asyncio.gather(*others)} == {text}


async def test_a_worker_that_dies_changes_nothing(hearing: Server) -> None:
    text, _ = await transcribed(hearing)
    kill = lambda: os.kill(hearing.child("worker 0"), signal.SIGKILL)  # noqa: E731
    assert (await transcribed(hearing, between=kill))[0] == text


async def test_utterances_follow_one_another(hearing: Server) -> None:
    async with opened(hearing) as client:
        await told(client)
        await say(client, "session.update", model=hearing.model, language="en")
        for _ in range(2):  # Sound may come before the commit, all of it.
            await append(client, SPEECH)
            await say(client, "input_audio_buffer.commit", final=True)
        first, second = await text_of(client), await text_of(client)
        assert first == second
        assert word_errors(SAID, first[0]) <= 1


async def test_what_is_wrong_is_told_and_the_session_goes_on(hearing: Server) -> None:
    wrong: list[tuple[str, str | None, str]] = [
        ("{", None, "JSON"),
        ("{}", None, "type is missing"),
        ('{"type": "response.create"}', None, "response.create"),
        ('{"type": "session.update", "voice": "x"}', "unknown_parameter", "voice"),
        ('{"type": "session.update", "model": "other"}', "model_not_found", "other"),
        ('{"type": "session.update", "language": "xx"}', "unsupported_value", "'xx'"),
        ('{"type": "input_audio_buffer.commit"}', "model_not_validated", "session.update"),
        ('{"type": "input_audio_buffer.append", "audio": "?"}', "invalid_audio", "base64"),
        ('{"type": "input_audio_buffer.append", "audio": "AA=="}', "invalid_audio", "1 bytes"),
    ]
    async with opened(hearing) as client:
        await told(client)
        for text, code, complaint in wrong:
            await client.send(text)
            message = await told(client)
            assert message["type"] == "error"
            assert complaint in message["error"], message
            assert code is None or message["code"] == code, message
        await client.send(b"\\0\\1")
        assert (await told(client))["type"] == "error"
        await say(client, "session.update", model=hearing.model, language="en")
        silence = base64.b64encode(bytes(640_000)).decode()
        for _ in range(3):
            await say(client, "input_audio_buffer.append", audio=silence)
        message = None
        await append(client, SPEECH * 9, 640_000)
        await say(client, "input_audio_buffer.commit", final=True)
        errors = []
        while (message := await told(client))["type"] != "transcription.done":
            errors.append(message)
        assert "audio_too_long" in {each.get("code") for each in errors}


async def test_a_message_that_is_too_large_ends_the_connection(hearing: Server) -> None:
    async with opened(hearing) as client:
        await told(client)
        await client.send("x" * 1_100_000)
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await told(client)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_pages_of_other_sites_are_refused(hearing: Server) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with opened(hearing, origin="https://elsewhere.example"):
            pass
    assert refused.value.response.status_code == 403
    assert b"--allowed-origins" in refused.value.response.body
    async with opened(hearing, origin=hearing.url):  # type: ignore[arg-type]
        pass


async def test_keys_and_the_end(tmp_path: Path) -> None:
    flags = ("--num-kv-blocks", "512", "--api-key", "secret")
    with Server(str(FOLDER), *flags) as server:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with opened(server):
                pass
        assert refused.value.response.status_code == 401
        named = {"subprotocols": ["realtime", "openai-insecure-api-key.secret"]}
        async with opened(server, additional_headers={"authorization": "Bearer secret"}) as client:
            async with opened(server, **named) as page:
                assert page.subprotocol == "realtime"
                await told(page)
            await told(client)
            await say(client, "session.update", language="en")
            await say(client, "input_audio_buffer.commit")
            await append(client, SPEECH)
            begun = (await told(client))["delta"]
            os.kill(server.child("gateway 0"), signal.SIGTERM)
            # What has begun is finished, and then the gateway leaves.
            await say(client, "input_audio_buffer.commit", final=True)
            text, deltas = await text_of(client)
            assert begun + "".join(deltas) == text
            assert word_errors(SAID, text) <= 1
            with pytest.raises(websockets.ConnectionClosed):
                await told(client)
