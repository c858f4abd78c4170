"""Sessions over a WebSocket: what is held, what changes when, and how they end."""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import websockets

from penstock.config.settings import GatewayConfig, MediaSettings
from penstock.media.desk import MediaDesk
from penstock_gateway.http.access_log import LOGGER
from penstock_gateway.models.backend import ModelRegistry
from penstock_gateway.realtime import session
from tests.gateway.keyring import ALICE, BOB, key, write
from tests.gateway.live_gateway import LiveGateway
from tests.gateway.realtime.hearing import (
    SILENCE,
    Listener,
    append,
    begin,
    commit,
    opened,
    say,
    speech,
    told,
)

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def gateway() -> Iterator[LiveGateway]:
    with LiveGateway(Listener()) as found:
        yield found
        found.engine.says.set()  # type: ignore[attr-defined]


def engine_of(gateway: LiveGateway) -> Listener:
    assert isinstance(gateway.engine, Listener)
    return gateway.engine


def text_of(client: Any) -> str:
    """The text of an utterance."""
    deltas = []
    while (message := told(client))["type"] == "transcription.delta":
        deltas.append(message["delta"])
    assert message["type"] == "transcription.done", message
    assert "".join(deltas) == message["text"]
    return str(message["text"])


def test_silence_takes_no_room(gateway: LiveGateway) -> None:
    """A microphone that nobody speaks into may stay open for hours."""
    gateway.service.media = MediaDesk(MediaSettings(max_media_seconds=3.0))
    with opened(gateway) as client:
        begin(client)
        commit(client)
        for _ in range(20):
            append(client, SILENCE)
        append(client, speech())
        commit(client, final=True)
        assert text_of(client)
        # Before anything is committed, too.
        for _ in range(20):
            append(client, SILENCE)
        append(client, speech())
        commit(client, final=True)
        assert text_of(client)
    gateway.turn()
    assert gateway.service.media.budget.held == 0


def test_what_is_being_heard_counts_as_waiting(gateway: LiveGateway) -> None:
    gateway.service.media = MediaDesk(MediaSettings(max_media_seconds=3.0))
    engine_of(gateway).says.clear()
    with opened(gateway) as client:
        begin(client)
        commit(client)
        append(client, speech())
        while not engine_of(gateway).submitted:
            gateway.turn()
        append(client, speech())
        message = told(client)
        assert message.get("code") == "audio_too_long", message
        assert "3 s may" in message["error"]
        engine_of(gateway).says.set()
        commit(client, final=True)
        assert text_of(client)


def test_an_utterance_is_what_its_commit_found(gateway: LiveGateway) -> None:
    """Also where it waits behind another one while the session changes."""
    engine = engine_of(gateway)
    engine.says.clear()
    with opened(gateway) as client:
        begin(client)
        for _ in range(2):
            append(client, speech())
            commit(client, final=True)
        while not engine.submitted:
            gateway.turn()
        found = []
        begun, using = session.Utterance.texts, ModelRegistry.using

        def texts(utterance: Any, terms: Any, name: str) -> Any:
            found.append((utterance.model, terms.adapter))
            return begun(utterance, terms, name)

        @asynccontextmanager
        async def naming(models: ModelRegistry, name: str | None) -> AsyncIterator[Any]:
            async with using(models, None) as asked:
                other = name == "other"
                yield replace(asked, name="other", adapter="another") if other else asked

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session.Utterance, "texts", texts)
            patch.setattr(ModelRegistry, "using", naming)
            say(client, "session.update", model="other")
            say(client, "?")
            assert told(client)["type"] == "error"
            engine.says.set()
            text_of(client)
            text_of(client)
        assert found == [(None, None)]


def test_a_binary_message_is_told_what_is_needed(gateway: LiveGateway) -> None:
    with opened(gateway) as client:
        begin(client)
        for _ in range(100):  # However many there are: each is refused by itself.
            client.send(SILENCE[:4])
        for _ in range(100):
            message = told(client)
            assert (message["type"], message["code"]) == ("error", "invalid_type")
            assert "JSON as text is needed" in message["error"]
        append(client, speech())
        commit(client, final=True)
        assert text_of(client)


def test_who_waits_for_text_is_not_idle(
    gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "IDLE", 0.3)
    engine = engine_of(gateway)
    engine.says.clear()
    with opened(gateway) as client:
        begin(client)
        append(client, speech())
        commit(client, final=True)
        timer = threading.Timer(1.0, engine.says.set)
        timer.start()
        assert text_of(client)
        timer.join()
        message = told(client)
        assert (message["type"], message["code"]) == ("error", "idle")
        with pytest.raises(websockets.ConnectionClosed):
            told(client)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR2])
def test_a_gateway_that_leaves_finishes_what_has_begun(signum: int) -> None:
    """Whether it hands over or not."""
    with LiveGateway(Listener()) as gateway:
        engine = engine_of(gateway)
        engine.says.clear()
        with opened(gateway) as idle, opened(gateway) as client:
            begin(client)
            assert told(idle)["type"] == "session.created"
            commit(client)
            append(client, speech())
            while not engine.submitted:
                gateway.turn()
            gateway.leave(signum)
            while not gateway.service.draining:
                gateway.turn()
            append(client, speech())
            engine.says.set()
            commit(client, final=True)
            assert text_of(client)
            for each in (client, idle):
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    told(each)
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1012


def test_a_key_that_was_taken_away_begins_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    write(file, key(ALICE), key(BOB))
    with LiveGateway(Listener(), GatewayConfig(api_keys=str(file))) as gateway:
        header = {"authorization": f"Bearer {ALICE}"}
        with opened(gateway, additional_headers=header) as client:
            begin(client)
            append(client, speech())
            commit(client, final=True)
            assert text_of(client)
            write(file, key(BOB))
            assert gateway.service.ring is not None
            gateway.service.ring.reload()
            append(client, speech())
            commit(client, final=True)
            message = told(client)
            assert (message["type"], message["code"]) == ("error", "invalid_api_key")


def test_connections_have_a_line_in_the_access_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = GatewayConfig(access_log="text")
    logging.getLogger(LOGGER).propagate = True
    with caplog.at_level(logging.INFO, LOGGER), LiveGateway(Listener(), config) as gateway:
        with opened(gateway) as client:
            begin(client)
            append(client, speech())
            commit(client, final=True)
            assert text_of(client)
        with pytest.raises(websockets.InvalidStatus), opened(gateway, origin="http://elsewhere"):
            pass
        lines = [each for each in caplog.records if each.name == LOGGER]
        while len(lines) < 2:
            gateway.turn()
            lines = [each for each in caplog.records if each.name == LOGGER]
        counted = gateway.service.responses
        assert (counted[101], counted[403]) == (1, 1)
    found = sorted(json.dumps(vars(each), default=str) for each in lines)
    assert any('"status": 101' in each and '"output_tokens": 2' in each for each in found), found
    assert any('"status": 403' in each for each in found), found
