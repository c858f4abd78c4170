"""What a request for a transcript may hold, and what it may cost before a model is asked."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig, MediaSettings
from penstock.media.sources import MediaSource
from penstock_gateway.app import create_app
from penstock_gateway.service import Service
from penstock_gateway.transcription import endpoint
from penstock_gateway.transcription.request import TranscriptionRequest, wishes_of
from tests.gateway.fake_engine import FakeEngineClient

PATH = "/v1/audio/transcriptions"


def gateway() -> Any:
    config = GatewayConfig(max_body_bytes=200_000)
    media = MediaSettings(max_media_bytes=100_000)
    return create_app(FakeEngineClient(), config, media=media)  # type: ignore[arg-type]


@pytest.fixture
def app() -> Any:
    return gateway()


@pytest.fixture
async def client(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def refused(client: httpx.AsyncClient, path: str = PATH, **given: Any) -> tuple[int, Any]:
    reply = await client.post(path, **given)
    return reply.status_code, reply.json()["error"]


def form(file: bytes = b"RIFF", **fields: Any) -> dict[str, Any]:
    return {"files": {"file": ("a.wav", file)}, "data": fields}


async def test_a_text_model_hears_nothing(client: httpx.AsyncClient) -> None:
    for path in (PATH, "/v1/audio/translations"):
        status, error = await refused(client, path, **form())
        assert (status, error["param"]) == (400, "model")
        assert "doesn't transcribe" in error["message"]


async def test_only_forms_are_taken(client: httpx.AsyncClient) -> None:
    status, error = await refused(client, json={"file": "x"})
    assert (status, error["code"]) == (400, "invalid_form")
    status, error = await refused(client, data={"model": "x"})
    assert status == 400
    status, error = await refused(client, files={"file": ("a", b"x"), "other": ("b", b"y")})
    assert (status, error["param"]) == (400, "other")


@pytest.mark.parametrize(
    ("fields", "param", "complaint"),
    [
        ({"response_format": "xml"}, "response_format", "json, text, srt, vtt, verbose_json"),
        ({"stream": "true", "response_format": "vtt"}, "response_format", "json or text"),
        ({"stream": "perhaps"}, "stream", "bool"),
        ({"temperature": "1.5"}, "temperature", "[0, 1]"),
        ({"temperature": "nan"}, "temperature", "[0, 1]"),
        ({"seed": "1.5"}, "seed", "int"),
        ({"chunking_strategy": "server_vad"}, "chunking_strategy", "allowed: auto"),
        ({"timestamp_granularities[]": ["letter"]}, "timestamp_granularities", "segment, word"),
        ({"timestamp_granularities[]": ["word"]}, "timestamp_granularities", "verbose_json"),
        ({"timestamp_granularities[]": ["segment"]}, "timestamp_granularities", "verbose_json"),
        ({"include[]": ["logprobs"]}, "include", "must be empty"),
        ({"known_speaker_names[]": ["Ada"]}, "known_speaker_names", "aren't told apart"),
        ({"languages[]": ["de", "en"]}, "languages", "name several"),
        ({"languages[]": ["de"], "language": "en"}, "languages", "name several"),
        ({"to_language": "fr", "language": "de"}, "to_language", "that of language, or none"),
        ({"to_language": "en"}, "to_language", "that of language, or none"),
        ({"max_completion_tokens": "x"}, "max_completion_tokens", "int"),
        ({"tempratur": "0"}, "tempratur", "did you mean temperature"),
        ({"language": ["de", "en"]}, "language", "appears twice"),
        ({"request_id": "a b\n"}, "request_id", "printable"),
        ({"deadline_ms": "0"}, "deadline_ms", "deadline_ms"),
    ],
)
async def test_wrong_fields(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str, complaint: str
) -> None:
    status, error = await refused(client, **form(**fields))
    assert (status, error["param"]) == (400, param), error
    assert complaint in error["message"]


def test_keywords_stand_before_the_prompt() -> None:
    for given, prompt, language in (
        ({"keywords": ["Penstock", "Rhône"], "prompt": "A talk."}, "Penstock, Rhône A talk.", None),
        ({"keywords": ["Penstock"], "languages": ["de"]}, "Penstock", "de"),
        ({"language": "en", "languages": ["en"]}, "", "en"),
        ({"hotwords": "Penstock Rhône", "keywords": ["dam"]}, "dam, Penstock Rhône", None),
    ):
        wishes = wishes_of(TranscriptionRequest(file="a.wav", **given))
        assert (wishes.prompt, wishes.language) == (prompt, language)


def test_vllms_sampling_fields_are_the_attempts() -> None:
    given = {"frequency_penalty": 1.5, "presence_penalty": -1.0, "repetition_penalty": 1.2}
    wishes = wishes_of(TranscriptionRequest(file="a.wav", max_completion_tokens=9, **given))
    params = wishes.params(0.0, 200)
    assert {name: getattr(params, name) for name in given} == given
    assert (params.max_tokens, wishes.params(0.0, 5).max_tokens) == (9, 5)
    silent = wishes_of(TranscriptionRequest(file="a.wav")).params(0.0, 200)
    assert (silent.max_tokens, silent.repetition_penalty) == (200, 1.0)


async def test_a_translation_is_into_english(client: httpx.AsyncClient) -> None:
    path = "/v1/audio/translations"
    status, error = await refused(client, path, **form(to_language="de"))
    assert (status, error["param"]) == (400, "to_language")
    for english in ("en", "English"):
        status, error = await refused(client, path, **form(to_language=english))
        assert (status, error["param"]) == (400, "model"), "the model of this test hears nothing"


async def test_a_translation_has_no_granularities(client: httpx.AsyncClient) -> None:
    given = form(**{"timestamp_granularities[]": ["segment"]})
    status, error = await refused(client, "/v1/audio/translations", **given)
    assert (status, error["code"]) == (400, "unknown_parameter")


async def test_large_files_and_bodies_are_refused(app: Any, client: httpx.AsyncClient) -> None:
    status, error = await refused(client, **form(bytes(100_001)))
    assert (status, error["param"]) == (413, "file")
    assert "--max-media-bytes" in error["message"]
    status, error = await refused(client, **form(bytes(300_000)))
    assert (status, "larger than 200000 bytes" in error["message"]) == (413, True)
    service: Service = app.state.service
    assert service.media.budget.held == 0
    service.draining = True
    status, error = await refused(client, **form())
    assert (status, error["code"]) == (503, "shutting_down")
    assert service.media.budget.held == 0


@pytest.mark.parametrize("stream", ["false", "true"])
async def test_a_file_is_let_go_once_it_is_prepared(
    app: Any, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    """From then on the lease doesn't count its bytes."""
    files: list[Any] = []
    holders: list[int] = []

    class Deaf:
        """Hears nothing, and looks who still holds the file."""

        seconds = 1.0

        async def segments(self) -> AsyncIterator[list[Any]]:
            holders.append(sys.getrefcount(files[0]))
            yield []

    async def begin(*given: Any, **more: Any) -> Deaf:
        files.append(next(each.data for each in given if isinstance(each, MediaSource)))
        return Deaf()

    monkeypatch.setattr(endpoint, "facts_of", lambda text: SimpleNamespace(max_tokens=9))
    monkeypatch.setattr(endpoint, "begin", begin)
    reply = await client.post(PATH, **form(b"a recording", stream=stream))
    assert reply.status_code == 200, reply.text
    nobody = [b"".join([b"other ", b"bytes"])]
    assert (files, holders) == ([b"a recording"], [sys.getrefcount(nobody[0])])
    service: Service = app.state.service
    assert service.media.budget.held == 0


async def test_fields_of_other_servers_are_skipped(client: httpx.AsyncClient) -> None:
    """whisper.cpp's, Speaches' and faster-whisper's: the model is what refuses here."""
    fields = {"vad_filter": "true", "hallucination_silence_threshold": "2", "no_context": "1"}
    status, error = await refused(client, **form(**fields))
    assert (status, error["param"]) == (400, "model")
