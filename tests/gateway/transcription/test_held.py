"""A recording's file leaves when it is prepared: what isn't counted any more isn't held either. Its
windows are held to one fingerprint."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import msgspec
import pytest

from penstock.client import ModelText
from penstock.model.media_facts import KindFacts, MediaFacts
from penstock_gateway.request.multipart import Form, FormReader
from tests.gateway.fake_engine import FakeGeneration
from tests.gateway.media import MEL, SeeingEngine, SeeingGateway, recorded
from tests.shared.transcription.test_segments import FACTS

PATH = "/v1/audio/transcriptions"


class HearingEngine(SeeingEngine):
    """holders: of the uploaded file, at each window that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        mel = msgspec.structs.replace(MEL, cut=False)
        in_front = KindFacts(preparation=mel, placeholder="", token="", token_id=FACTS.start)
        facts = msgspec.structs.replace(FACTS, window_frames=mel.chunk_frames)
        media = MediaFacts(kinds={"audio": in_front}, transcription=facts)
        self.text = ModelText(self.text.tokenizer, self.text.template, media)
        self.welcome = msgspec.structs.replace(self.welcome, media=media)
        self.files: list[bytes] = []
        self.holders: list[int] = []

    async def submit(self, *given: Any, speech: Any, **named: Any) -> FakeGeneration:  # type: ignore[override]
        self.holders.append(sys.getrefcount(self.files[0]))
        return await super().submit(*given, **named)


@pytest.mark.parametrize("stream", ["false", "true"])
async def test_the_file_is_gone_when_a_window_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    engine = HearingEngine()
    finish = FormReader.finish

    def finished(reader: FormReader) -> Form:
        form = finish(reader)
        engine.files.append(form.file or b"")
        return form

    monkeypatch.setattr(FormReader, "finish", finished)
    sample = [recorded(0.25)]
    alone = sys.getrefcount(sample[0])
    async with SeeingGateway(engine) as gateway:
        reply = await gateway.client.post(
            PATH, files={"file": ("a.wav", recorded(2.5))}, data={"stream": stream}
        )
        assert reply.status_code == 200, reply.text
        assert engine.files[0] == recorded(2.5)
        assert len(engine.holders) >= 3
        assert set(engine.holders) == {alone}
        assert gateway.desk.budget.held == 0


@pytest.mark.parametrize("stream", ["false", "true"])
async def test_all_windows_are_computed_alike(stream: str) -> None:
    """The engine core that has least to do is another one at each look."""
    engine = HearingEngine()
    engine.files.append(b"")
    looks = itertools.count()
    # mypy takes no assignment to a method; the instance's own comes before the class's.
    engine.fingerprint_for = lambda *_: f"of look {next(looks)}"  # type: ignore[method-assign]
    async with SeeingGateway(engine) as gateway:
        reply = await gateway.client.post(
            PATH, files={"file": ("a.wav", recorded(2.5))}, data={"stream": stream}
        )
    assert reply.status_code == 200, reply.text
    assert len(engine.terms) >= 3
    assert {terms.fingerprint for terms in engine.terms} == {"of look 0"}
