"""Responses that are held in memory where no database keeps them: on by default, as at OpenAI."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from penstock_gateway.storage.chains import BrokenChain
from penstock_gateway.storage.held_responses import MOST, SECONDS, SHARE, HeldResponses
from tests.gateway.fake_engine import FakeEngineClient, say

URL = "/v1/responses"


@pytest.fixture
def engine() -> FakeEngineClient:
    engine = FakeEngineClient()
    engine.script = say("Yes.")
    return engine


def client(engine: FakeEngineClient, *, gateways: int = 1, **settings: Any) -> httpx.AsyncClient:
    config = GatewayConfig(**settings)
    app = create_app(engine, config, gateways=gateways)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


async def ask(http: httpx.AsyncClient, said: Any, **more: Any) -> dict[str, Any]:
    reply = await http.post(URL, json={"input": said, **more})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_goes_on_by_id_and_by_reference(
    engine: FakeEngineClient, stream: bool
) -> None:
    """As Vercel's createOpenAI()(model) does in each step of a tool loop."""
    async with client(engine) as http:
        if stream:
            reply = await http.post(URL, json={"input": "One?", "stream": True})
            assert reply.status_code == 200
            id = reply.text.partition('"id":"')[2].partition('"')[0]
            first = (await http.get(f"{URL}/{id}")).json()
        else:
            first = await ask(http, "One?")
        assert first["store"] is True
        (item,) = first["output"]
        await ask(http, "Two?", previous_response_id=first["id"])
        expected = "user: One?\nassistant: Yes.0\nuser: Two?\nassistant:"
        assert bytes(engine.submitted[-1][0]).decode() == expected
        question = {"role": "user", "content": "One?"}
        reference = {"type": "item_reference", "id": item["id"]}
        await ask(http, [question, reference, {"role": "user", "content": "Two?"}])
        assert bytes(engine.submitted[-1][0]).decode() == expected
        assert (await http.get(f"{URL}/{first['id']}")).json()["id"] == first["id"]
        assert (await http.delete(f"{URL}/{first['id']}")).status_code == 200
        assert (await http.get(f"{URL}/{first['id']}")).status_code == 404


async def test_what_is_lost_is_a_clear_404(engine: FakeEngineClient) -> None:
    async with client(engine) as http:
        first = await ask(http, "One?")
    async with client(engine) as restarted:
        body = {"input": "Two?", "previous_response_id": first["id"]}
        lost = await restarted.post(URL, json=body)
        assert lost.status_code == 404
        assert "holds responses in memory" in lost.json()["error"]["message"]
        assert "--stored-response-hours" in lost.json()["error"]["message"]


async def test_who_says_no_and_several_gateways_hold_nothing(engine: FakeEngineClient) -> None:
    async with client(engine) as http:
        assert (await ask(http, "One?", store=False))["store"] is False
    for settings in ({"gateways": 2}, {"held_responses_mib": 0}):
        async with client(engine, **settings) as http:
            assert (await ask(http, "One?"))["store"] is False


def total(held: list[tuple[str, str, str, float]], owner: str | None = None) -> int:
    return sum(1024 + len(each[2]) for each in held if owner in (None, each[0]))


async def test_bounds_and_owners_against_a_slow_model() -> None:
    dice, now, size = random.Random(1), [0.0], 64 << 10
    held = HeldResponses(size, lambda: now[0])
    model: list[tuple[str, str, str, float]] = []
    for step in range(3000):
        owner = dice.choice("abc")
        text = "x" * dice.randrange(2000)
        id = f"resp_{step}" if dice.random() < 0.9 else f"resp_{dice.randrange(step + 1)}"
        await held.save(owner, id, None, "", text)
        model = [each for each in model if each[:2] != (owner, id)]
        model.append((owner, id, text, now[0] + SECONDS))
        while total(model, owner) > size // SHARE:
            model.remove(next(each for each in model if each[0] == owner))
        while total(model) > size or model[0][3] <= now[0]:
            del model[0]
        now[0] += dice.random() * 120
        if step % 50 == 0:
            assert held.bytes <= size
            for each in model:
                living = each[3] > now[0]
                assert (await held.find(each[0], each[1]) == each[2]) is living
            assert await held.find("d", model[-1][1]) is None


async def test_many_small_ones_and_one_that_is_too_large() -> None:
    held = HeldResponses(64 << 20)
    for number in range(MOST + 5):
        await held.save("a", str(number), None, "", "")
    assert len(held) == MOST
    assert await held.find("a", "4") is None
    await held.save("a", "large", None, "", "x" * (16 << 20))
    assert await held.find("a", "large") is None
    assert len(held) == MOST


async def test_a_chain_that_is_gone_on_from_is_held_longer() -> None:
    now = [0.0]
    held = HeldResponses(1 << 20, lambda: now[0])
    await held.save("a", "one", None, "[1]", "{}")
    await held.save("a", "two", "one", "[2]", "{}")
    now[0] = SECONDS - 1
    links = await held.conversation("a", "two", most=100, own_id="three")
    assert [items for items, _ in links] == ["[1]", "[2]"]
    now[0] = SECONDS + 1
    assert await held.find("a", "one") == "{}"
    now[0] = 3 * SECONDS
    with pytest.raises(BrokenChain):
        await held.conversation("a", "two", most=100, own_id="three")
