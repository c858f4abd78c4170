"""Times of words where no engine core can tell them: refused before anything is decoded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.client import ModelText
from penstock.model.transcription_facts import Alignment
from tests.gateway.fake_engine import status
from tests.gateway.media import SeeingGateway, recorded
from tests.gateway.transcription.test_held import PATH, HearingEngine

FORM: dict[str, Any] = {"response_format": "verbose_json", "timestamp_granularities[]": ["word"]}


class AligningEngine(HearingEngine):
    """Its model's files say which heads follow the sound."""

    def __init__(self) -> None:
        super().__init__()
        media = self.text.media
        assert media is not None
        assert media.transcription is not None
        facts = msgspec.structs.replace(media.transcription, alignment=Alignment(heads=((0, 0),)))
        media = msgspec.structs.replace(media, transcription=facts)
        self.text = ModelText(self.text.tokenizer, self.text.template, media)
        self.welcome = msgspec.structs.replace(self.welcome, media=media)
        self.files = [b""]


@pytest.mark.parametrize("who", ["settings", "worker"])
async def test_a_server_that_has_none_says_so_at_once(who: str) -> None:
    engine = AligningEngine()
    if who == "settings":
        engine.welcome = msgspec.structs.replace(engine.welcome, aligns=False)
    else:
        engine.status = status(aligns=False)
    async with SeeingGateway(engine) as gateway:
        given = {"files": {"file": ("a.wav", recorded(0.5))}}
        reply = await gateway.client.post(PATH, **given, data=FORM)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "unsupported_value")
        assert error["param"] == "timestamp_granularities"
        assert "one worker, on a CPU" in error["message"]
        assert gateway.desk.pool.counts.items == 0
        assert gateway.desk.budget.held == 0
        assert engine.submitted == []
        segments = FORM | {"timestamp_granularities[]": ["segment"]}
        reply = await gateway.client.post(PATH, **given, data=segments)
        assert reply.status_code == 200, reply.text
