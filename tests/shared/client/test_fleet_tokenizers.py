"""Engine cores whose tokenizers are read while streams go on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.client.served_model import ModelText
from penstock.protocol.to_frontend import Welcome
from tests.shared.client.client_requests import collect, until
from tests.shared.client.fleet_scene import BOOTS, LONG

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]


class Reading:
    """Holds up what reads a model's tokenizer and template. fails: the first time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: BaseException | None = None) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.created: list[int] = []
        """`created` of the welcomes whose texts were read."""
        self._actual = ModelText.from_welcome
        self._fails = fails
        monkeypatch.setattr(ModelText, "from_welcome", self._read)

    def _read(self, welcome: Welcome, frames: list[bytes]) -> ModelText:
        self.created.append(welcome.created)
        self.begun.set()
        self.may_end.wait(60)
        if self._fails is not None and len(self.created) == 1:
            raise self._fails
        return self._actual(welcome, frames)


async def test_streams_go_on_while_another_engines_tokenizer_is_read(scene, monkeypatch):
    first = scene.engine(0)
    client = await scene.connect(2)
    await scene.ready(1)
    generation = await client.submit(list(b"x"), LONG, name="r")
    reading = Reading(monkeypatch)
    scene.engine(1, created=1, template="{{ messages }}")
    await until(reading.begun.is_set)
    first.text(first.submits[0], "done", finish="length")
    assert (await collect(generation))[0][0] == "done"
    assert [each.connected for each in client.engines] == [True, False]
    reading.may_end.set()
    await scene.ready(2)
    assert client.text.template.source == "{{ messages }}"


async def test_an_engine_that_leaves_while_its_tokenizer_is_read_may_come_again(scene, monkeypatch):
    reading = Reading(monkeypatch)
    engine = scene.engine(0)
    client = await scene.connect(1)
    await until(reading.begun.is_set)
    await engine.die()
    reading.may_end.set()
    # The death may be noticed after the text was read: until then it may count as there.
    await until(lambda: not client.connected)
    again = scene.engine(0, boot=BOOTS[1])
    await until(lambda: again.session and client.engines[0].welcome.boot == BOOTS[1].hex())
    await scene.ready(1)


async def test_an_engine_that_began_earlier_does_not_speak_for_all_as_it_is_read_later(
    scene, monkeypatch
):
    reading = Reading(monkeypatch)
    scene.engine(0, created=2, template="{{ messages }}")
    client = await scene.connect(2)
    await until(reading.begun.is_set)
    older = scene.engine(1, created=1, template="{{ bos_token }}")
    await until(lambda: older.session)
    await asyncio.sleep(0.1)
    reading.may_end.set()
    await scene.ready(2)
    assert client.text.template.source == "{{ messages }}"
    assert reading.created == [2], "one text serves all"


async def test_nothing_is_left_of_a_client_that_leaves_while_a_tokenizer_is_read(
    scene, monkeypatch
):
    reading = Reading(monkeypatch)
    scene.engine(0)
    before = asyncio.all_tasks()
    client = await scene.connect(1)
    await until(reading.begun.is_set)
    await client.close()
    assert asyncio.all_tasks() <= before
    reading.may_end.set()


class Panic(BaseException):
    """An error such as the tokenizers' library raises."""


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), Panic("index")])
async def test_an_engine_whose_tokenizer_cannot_be_read_is_dialled_again(scene, monkeypatch, error):
    reading = Reading(monkeypatch, fails=error)
    reading.may_end.set()
    scene.engine(0)
    client = await scene.connect(1)
    await until(lambda: str(error) in client.engines[0].reason or client.connected)
    await scene.ready(1)
    assert len(reading.created) == 2
