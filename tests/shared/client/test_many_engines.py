"""Many engine cores of one model: what a front end need not be told again."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from penstock.client import first_alone
from penstock.protocol.to_frontend import Unchanged
from testing.scripted_engine import ScriptedEngine
from tests.shared.client.client_requests import collect, until
from tests.shared.client.fleet_scene import BOOTS, LONG

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio]

MANY = first_alone.MANY + 2


async def test_one_of_many_sends_its_tokenizer(scene, monkeypatch):
    """256 sent 400 MB to a gateway that started."""
    monkeypatch.setattr(first_alone, "FIRST_ALONE", 60.0)
    engines = [scene.engine(number, names_text=True) for number in range(MANY)]
    await scene.connect(MANY)
    await scene.ready(MANY)
    assert [engine.sent_text for engine in engines] == [1, *[0] * (MANY - 1)]


async def test_the_others_are_dialled_although_the_first_does_not_come(scene, monkeypatch):
    monkeypatch.setattr(first_alone, "FIRST_ALONE", 0.05)
    for number in range(1, MANY):
        scene.engine(number, names_text=True)
    await scene.connect(MANY)
    await scene.ready(MANY - 1)


async def test_an_engine_that_comes_again_does_not_send_its_tokenizer_again(scene):
    engine = scene.engine(0, names_text=True, template="{{ messages }}")
    client = await scene.connect(1)
    await scene.ready(1)
    text = client.text
    await engine.die()
    again = scene.engine(0, boot=BOOTS[1], names_text=True, template="{{ messages }}", created=1)
    await until(lambda: again.session and client.connected)
    assert again.sent_text == 0
    assert client.text is text
    assert client.welcome.boot == BOOTS[1].hex()
    generation = await client.submit(list(b"x"), LONG, name="r")
    again.text(again.submits[0], "as before", finish="length")
    assert (await collect(generation))[0][0] == "as before"


@pytest.mark.parametrize("change", [{"template": "{{ bos_token }}"}, {"digest": "d2"}])
async def test_an_engine_with_another_text_sends_it(scene, change):
    engine = scene.engine(0, names_text=True, template="{{ messages }}")
    client = await scene.connect(1)
    await scene.ready(1)
    await engine.die()
    changed = {"template": "{{ messages }}", **change}
    again = scene.engine(0, boot=BOOTS[1], names_text=True, created=1, **changed)
    await until(lambda: again.session and client.connected)
    assert again.sent_text == 1
    assert client.text.template.source == changed["template"]


async def test_a_text_that_went_between_hello_and_welcome_is_asked_for_again(scene, monkeypatch):
    """The engine core relies on what the Hello says, which may have changed since."""
    first = scene.engine(0, names_text=True, template="{{ messages }}")
    client = await scene.connect(2)
    await scene.ready(1)
    digest, tokenizer, _ = client._dispatch.text
    later = "{{ bos_token }}"
    gone = (digest, tokenizer, hashlib.sha256(later.encode()).hexdigest())
    engines: list[ScriptedEngine] = []
    told = type(client._dispatch).text.fget
    monkeypatch.setattr(
        type(client._dispatch),
        "text",
        property(lambda self: told(self) if engines and engines[0].hellos else gone),
    )
    engines.append(scene.engine(1, names_text=True, created=2, template=later))
    await until(lambda: len(engines[0].hellos) >= 2)
    await scene.ready(2)
    assert [hello.text == gone for hello in engines[0].hellos] == [True, False]
    assert engines[0].sent_text == 1
    assert client.text.template.source == later
    assert first.sent_text == 1


async def test_unchanged_is_a_state_that_was_told_now(scene):
    engine = scene.engine(0, telling=False)
    client = await scene.connect(1)
    await scene.ready(1)
    [session] = client._fleet
    status, told = session.status, session._status_at
    engine.send(Unchanged())
    await until(lambda: session._status_at > told)
    assert session.status == status
    assert session.ready


async def test_unchanged_before_any_state_ends_the_session(scene):
    engine = scene.engine(0, telling=False)
    engine.status = Unchanged
    client = await scene.connect(1)
    await until(lambda: "before any Status" in client.engines[0].reason)
    del engine.status
    await asyncio.sleep(0)
    await scene.ready(1)
