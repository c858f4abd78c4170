"""A stream goes on only with what it began with: whatever the server adds to a request, its answer
depends on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from penstock.client.placement import Computing, fingerprint_name
from penstock.errors import EngineUnavailable, InvalidRequest
from penstock.media.item_names import PromptMedia
from penstock.model.prepared_model import GenerationDefaults
from penstock.protocol.media import Media, MediaItem, MediaSpan
from penstock.request.sampling_params import SamplingParams
from penstock_gateway.generate.event_ids import Origin, OriginWriter
from penstock_gateway.generate.replay import AnswerBasis, replay_of
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.request.fields import RequestFields, StreamOptions, TermsHeaders
from tests.gateway.fake_engine import FakeEngineClient

RESUMABLE = {"stream": True, "stream_options": {"resumable": True}}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], **RESUMABLE},
    COMPLETIONS: {"prompt": "Hi", **RESUMABLE},
}


class Body(RequestFields, frozen=True, kw_only=True):
    """The least that an endpoint reads."""

    seed: int | None = None


def picture(digest: str) -> PromptMedia:
    item = MediaItem(name=digest * 64, kind="image", rows=1, size=3, digest=digest * 64)
    return PromptMedia(Media((item,), (MediaSpan(0, 1, 1),)), {})


ASKED = AnswerBasis(
    [[1, 2], [3]],
    [SamplingParams(seed=7), SamplingParams(seed=7)],
    picture("a"),
    "a model",
    "a template's digest",
)


class Computes(FakeEngineClient):
    """Engine cores that compute with these. undecided: that haven't told."""

    def __init__(self, *fingerprints: str, undecided: int = 0) -> None:
        super().__init__()
        self._computes, self.undecided = set(fingerprints), undecided

    @property
    def fingerprints(self) -> set[str]:
        return self._computes


async def begun(
    asked: AnswerBasis,
    last: str | None = None,
    client: FakeEngineClient | None = None,
    adapter: str = "",
    key: str | None = None,
) -> tuple[str, int, str | None]:
    """What the ids of a stream begin with that a server begins, or goes on with; how many tokens
    its client has; and what it is held to. A stream that begins is computed with "fp"."""
    request = Body(stream_options=StreamOptions(resumable=True))
    headers = TermsHeaders("", None, None, last_event_id=last, idempotency_key=key)
    replay = await replay_of(headers, request, "chat")
    held = await replay.held(client or Computes("fp"), adapter)  # type: ignore[arg-type]  # A fake.
    head = ReplyHead(id="1", model="model", adapter=adapter)
    head.computed = lambda: Computing(held or "fp")
    replay.fixed(request, head, 7)
    await replay.settle(asked)
    return OriginWriter(replay._begun(), head).written().decode(), replay.known_tokens, held


OTHERS: dict[str, dict[str, Any]] = {
    "a token": {"prompt_token_ids": [[1, 2], [4]]},
    "where prompts end": {"prompt_token_ids": [[1], [2, 3]]},
    "a default of sampling": {"params": [SamplingParams(seed=7), SamplingParams(seed=7, top_k=3)]},
    "where it ends": {"params": [SamplingParams(seed=7, max_tokens=n) for n in (16, 17)]},
    "a picture": {"media": picture("b")},
    "the chat template": {"reading": "another's"},
    "the model": {"model": "another"},
}


@pytest.mark.parametrize("name", OTHERS)
async def test_it_goes_on_with_the_same_only(name: str) -> None:
    origin, _, held = await begun(ASKED)
    assert held is None
    assert await begun(ASKED, f"{origin}.3") == (origin, 3, "fp")
    with pytest.raises(InvalidRequest, match="have changed since") as refused:
        await begun(ASKED._replace(**OTHERS[name]), f"{origin}.3")
    assert refused.value.code == "model_changed"


async def test_it_goes_on_with_what_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.computing.SETTLING", 0.1)
    origin, *_ = await begun(ASKED)
    was, there = fingerprint_name("fp"), fingerprint_name("another")
    assert await begun(ASKED, f"{origin}.3", Computes("another", "fp")) == (origin, 3, "fp")
    with pytest.raises(EngineUnavailable, match=f"computed with {was}; .* 1 may .* {there}"):
        await begun(ASKED, f"{origin}.3", Computes("another", undecided=1))
    with pytest.raises(InvalidRequest, match=f"computed with {was}, .* with {there}: ") as refused:
        await begun(ASKED, f"{origin}.3", Computes("another"))
    assert (refused.value.code, refused.value.param) == ("model_changed", "Last-Event-ID")
    with pytest.raises(InvalidRequest, match="with none"):
        await begun(ASKED, f"{origin}.3", Computes())


async def test_an_adapter_is_a_part_of_what_computes() -> None:
    origin, *_ = await begun(ASKED, adapter="one")
    assert await begun(ASKED, f"{origin}.3", adapter="one") == (origin, 3, "fp")
    with pytest.raises(InvalidRequest, match=fingerprint_name("fp", "one")):
        await begun(ASKED, f"{origin}.3", adapter="another")


async def test_a_key_leads_to_one_fingerprint() -> None:
    """Whoever comes or goes beside it; and each key to its own."""
    led = set()
    for key in map(str, range(32)):
        origin, _, held = await begun(ASKED, client=Computes("a", "b", "c"), key=key)
        assert held is not None
        led.add(held)
        assert (await begun(ASKED, client=Computes(held), key=key))[2] == held
        fewer = sorted({"a", "b", "c"} - {held})[0]
        assert (await begun(ASKED, client=Computes(held, fewer), key=key))[2] == held
        other, _, instead = await begun(ASKED, client=Computes(fewer), key=key)
        assert instead == fewer
        assert Origin.read(other).name != Origin.read(origin).name, "another answer has another id"
        assert Origin.read(other).seed == Origin.read(origin).seed
    assert led == {"a", "b", "c"}


async def test_a_forged_fingerprint_gets_nothing_that_is_not_there() -> None:
    """Ids are no secret: whoever writes one asks for what a request of their own may get."""
    origin, *_ = await begun(ASKED)
    forged = Origin.read(origin)._replace(computed=bytes(6)).written()
    with pytest.raises(InvalidRequest, match="computed with fp_000000000000"):
        await begun(ASKED, f"{forged}.3")
    name = bytes.fromhex(fingerprint_name("another")[3:])
    forged = Origin.read(origin)._replace(computed=name).written()
    assert (await begun(ASKED, f"{forged}.3", Computes("another", "fp")))[2] == "another"


async def asked(http: httpx.AsyncClient, path: str, last: str | None = None) -> httpx.Response:
    headers = {} if last is None else {"Last-Event-ID": last}
    return await http.post(path, json=BODIES[path], headers=headers)


def first_id(reply: httpx.Response) -> str:
    return next(line[4:] for line in reply.text.split("\n") if line.startswith("id: "))


def another_template(engine: FakeEngineClient) -> None:
    engine.welcome = msgspec.structs.replace(engine.welcome, template_sha256="another")


def another_temperature(engine: FakeEngineClient) -> None:
    defaults = GenerationDefaults(eos_token_ids=(256,), temperature=0.3)
    engine.welcome = msgspec.structs.replace(engine.welcome, generation=defaults)


@pytest.mark.parametrize(
    ("change", "path", "status"),
    [
        (lambda engine: None, CHAT, 200),
        (another_template, CHAT, 400),
        (another_template, COMPLETIONS, 200),
        (another_temperature, CHAT, 400),
        (another_temperature, COMPLETIONS, 400),
    ],
)
async def test_a_server_that_has_changed(
    http: httpx.AsyncClient,
    engine: FakeEngineClient,
    change: Callable[[FakeEngineClient], None],
    path: str,
    status: int,
) -> None:
    """Completions fill no template."""
    last = first_id(await asked(http, path))
    change(engine)
    reply = await asked(http, path, last)
    assert reply.status_code == status, reply.text
    if status == 400:
        assert reply.json()["error"]["code"] == "model_changed"
        assert reply.json()["error"]["param"] == "Last-Event-ID"


async def test_the_template_is_told_when_the_stream_began(
    http: httpx.AsyncClient, engine: FakeEngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some templates write the date, and it may be another by now."""
    reply = await asked(http, CHAT)
    monkeypatch.setattr("penstock_gateway.generate.reply.time.time", lambda: 2_000_000_000)
    assert (await asked(http, CHAT, first_id(reply))).status_code == 200
    created = json.loads(reply.text.partition("data: ")[2].partition("\n")[0])["created"]
    assert engine.template.times == [created, created]
    await asked(http, CHAT)
    assert engine.template.times[2] == 2_000_000_000


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "one"}])
async def test_whole_numbers_of_any_size(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    """They are in no range in a schema, which is a part of what the answer is named by."""
    number = {"type": "integer", "maximum": 10**30}
    schema = {"type": "object", "properties": {"number": number}}
    tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
    body = {**BODIES[CHAT], "tools": [tool]}
    reply = await http.post(CHAT, json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    reply = await http.post(CHAT, json=body, headers={"Last-Event-ID": first_id(reply)})
    assert reply.status_code == 200, reply.text
