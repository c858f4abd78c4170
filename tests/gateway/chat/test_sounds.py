"""Sounds in messages: what is sent to the engine core, and what is refused."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from penstock.media.log_mel import log_mel
from penstock.media.prepared import read
from penstock_engine.handlers.media_checks import check_media
from tests.gateway.media import (
    MEL,
    ROWS,
    SeeingEngine,
    SeeingGateway,
    audio,
    data_uri,
    image,
    recorded,
    text,
)
from tests.shared.media.sounds import RATE, sound

BOTH = ("image", "audio")
HALF = MEL.embeddings(RATE // 2)
"""Rows of half a second."""


def ids_of(engine: SeeingEngine, filled: str, *rows: int) -> list[int]:
    """Token ids of a filled template: its sounds have so many rows, its pictures all the same."""
    for count in rows:
        filled = filled.replace("<|AUDIO|>", "\0" * count, 1)
    filled = filled.replace("\0", "<|AUDIO|>").replace("<image>", "<image>" * ROWS)
    return engine.text.tokenizer.encode(filled)


async def test_sounds_and_pictures_go_to_the_engine_core() -> None:
    """Both kinds in one message; sounds of different lengths, in every way to send them."""
    engine = SeeingEngine(kinds=BOTH)
    url = {"type": "audio_url", "audio_url": {"url": data_uri(recorded(0.3), "audio/flac")}}
    async with SeeingGateway(engine) as gateway:
        reply = await gateway.ask(text("xy"), audio(), text("c"), image(), url, audio())
        assert reply.status_code == 200, reply.text
        short = MEL.embeddings(int(0.3 * RATE))
        ids = ids_of(engine, "user:xy<|AUDIO|>c<image><|AUDIO|><|AUDIO|>;", HALF, short, HALF)
        assert engine.submitted[0][0] == ids
        assert reply.json()["usage"]["prompt_tokens"] == len(ids)
        media, prepared = engine.media[0], engine.prepared[0]
        assert media is not None
        check_media(media, len(ids))  # The engine core's own checks.
        kinds = [(item.kind, item.rows, item.grid) for item in media.items]
        assert kinds == [("audio", HALF, ()), ("image", ROWS, ()), ("audio", short, ())]
        assert [span.item for span in media.spans] == [0, 1, 2, 0]
        data = prepared[media.items[0].name]
        assert media.items[0].digest == hashlib.sha256(data).hexdigest()
        # 16 bits a sample have no more than these.
        whole = np.round(sound(0.5) * 32768) / 32768
        assert np.abs(read(data)["mel"] - log_mel(MEL, whole.astype(np.float32))).max() < 1e-3
        assert gateway.desk.budget.held == 0
        same = {"messages": [{"role": "user", "content": [audio(), text("d")]}]}
        counted = await gateway.client.post("/tokenize", json=same)
        assert counted.json()["tokens"][5 : 5 + HALF] == ids[7 : 7 + HALF]
        answer = await gateway.client.post(
            "/v1/responses",
            json={
                "input": [
                    {"role": "user", "content": [audio(), {"type": "input_text", "text": "d"}]}
                ]
            },
        )
        assert answer.status_code == 200, answer.text
        assert engine.media[-1] is not None
        assert engine.media[-1].items[0] == media.items[0]
        assert gateway.desk.pool.counts.items == 3, "what was prepared is kept"


BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "no format": ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, 400, "format is"),
    "another format": (audio(form="midi"), 400, "allowed: wav, mp3, flac, ogg, opus"),
    "no data": ({"type": "input_audio", "input_audio": {"format": "wav"}}, 400, "base64"),
    "nothing": ({"type": "input_audio"}, 400, "input_audio is missing"),
    "no object": ({"type": "input_audio", "input_audio": "AAAA"}, 400, "an object with data"),
    "broken base64": (
        {"type": "input_audio", "input_audio": {"data": "A!", "format": "wav"}},
        400,
        "the sound has a data: URI whose base64 is broken",
    ),
    "a picture": (
        {"type": "audio_url", "audio_url": {"url": data_uri()}},
        400,
        r"of type image/png; audio/… is needed",
    ),
    "a text": (audio(b"no sound at all"), 400, "the sound has an unsupported format"),
    "too long for the model": (audio(recorded(1.2)), 400, "this model hears 1 s at most"),
    "too long": (audio(recorded(4)), 400, r"lasts 4 s; at most 3 are accepted"),
    "too short": (audio(recorded(0.01)), 400, "this model hears 321 at least"),
    "too large": (audio(bytes(200_001)), 413, "more than 200000 bytes"),
    "a URL": (
        {"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}},
        400,
        "the sound has a URL; nothing is fetched here",
    ),
}


async def test_a_sound_that_cant_be_heard_is_an_error_that_names_its_part() -> None:
    settings = {"max_media_seconds": 3.0, "max_media_bytes": 200_000}
    async with SeeingGateway(SeeingEngine(kinds=BOTH), **settings) as gateway:
        for name, (part, status, words) in BAD.items():
            reply = await gateway.ask(text("a"), part)
            assert reply.status_code == status, (name, reply.text)
            error = reply.json()["error"]
            assert words in error["message"], name
            assert error["param"].startswith("messages[0].content[1]"), name
        assert gateway.desk.budget.held == 0


@pytest.mark.parametrize(
    ("kinds", "settings", "words"),
    [
        (("image",), {}, "is a sound; media are not supported by this model, which takes text and"),
        (BOTH, {"limit_mm_per_prompt": '{"audio": 1}'}, "has 2 sounds; at most 1 are accepted"),
        (BOTH, {"limit_mm_per_prompt": '{"audio": 0}'}, "at most 0 are accepted"),
    ],
)
async def test_kinds_and_numbers(
    kinds: tuple[str, ...], settings: dict[str, Any], words: str
) -> None:
    async with SeeingGateway(SeeingEngine(kinds=kinds), **settings) as gateway:
        reply = await gateway.ask(text("a"), audio(), audio())
        assert reply.status_code == 400
        assert words in reply.json()["error"]["message"]
        assert not gateway.desk.pool.pids


@pytest.mark.parametrize(
    ("parts", "named"), [((audio(),), "sounds"), ((image(), audio()), "pictures and sounds")]
)
async def test_what_would_copy_a_sound_is_refused_by_its_name(parts: Any, named: str) -> None:
    async with SeeingGateway(SeeingEngine(kinds=BOTH)) as gateway:
        reply = await gateway.ask(*parts, use_beam_search=True, n=2)
        assert reply.status_code == 400
        assert f"use_beam_search can't be combined with {named}" in reply.text
