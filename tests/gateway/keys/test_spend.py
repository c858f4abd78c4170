"""What each API key has used, by the metrics: the sums that its own replies name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.client import SequenceDelta
from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_admin_app, create_app
from penstock_gateway.keys import spend
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.keyring import ADMIN, ALICE, BOB, OTHER, bearer, key, write


class Gateway:
    """A gateway with keys: its main port and its admin's."""

    def __init__(self, engine: FakeEngineClient, folder: Path) -> None:
        names = [key(secret) for secret in (ALICE, BOB, OTHER)] + [key(ADMIN, admin=True)]
        config = GatewayConfig(api_keys=write(folder / "keys.json", *names))
        app = create_app(engine, config)  # type: ignore[arg-type]
        self._main = httpx.ASGITransport(app)
        self._admin = httpx.ASGITransport(create_admin_app(app.state.service))

    async def ask(self, secret: str, **fields: object) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._main, base_url="http://gateway") as http:
            body = {"prompt": "0123456789", **fields}
            return await http.post("/v1/completions", json=body, headers=bearer(secret))

    async def spent(self) -> dict[str, Counter[str]]:
        """What is counted -> by key."""
        async with httpx.AsyncClient(transport=self._admin, base_url="http://admin") as http:
            reply = await http.get("/metrics", headers=bearer(ADMIN))
        assert reply.status_code == 200
        found: dict[str, Counter[str]] = {}
        for family in text_string_to_metric_families(reply.text):
            if family.name.startswith("penstock:key_"):
                counter = found.setdefault(family.name.removeprefix("penstock:key_"), Counter())
                counter.update({s.labels["key"]: int(s.value) for s in family.samples})
        return found


@pytest.fixture
def gateway(engine: FakeEngineClient, tmp_path: Path) -> Gateway:
    return Gateway(engine, tmp_path)


async def test_each_key_is_counted_by_its_name(gateway: Gateway) -> None:
    wanted: dict[str, Counter[str]] = {
        name: Counter() for name in ("prompts", "prompt_tokens", "generation_tokens")
    }
    asked = ((ALICE, "one", 1), (BOB, "three", 1), (ALICE, ["a", "bcd"], 1), (BOB, "x", 3))
    for secret, prompt, n in asked:
        usage = (await gateway.ask(secret, prompt=prompt, n=n)).json()["usage"]
        name = secret.removeprefix("sk-")
        wanted["prompts"][name] += len(prompt) if isinstance(prompt, list) else 1
        wanted["prompt_tokens"][name] += usage["prompt_tokens"]
        wanted["generation_tokens"][name] += usage["completion_tokens"]
    assert (await gateway.ask("sk-unknown")).status_code == 401
    assert (await gateway.ask(OTHER, nonsense=1)).status_code == 400
    found = await gateway.spent()
    assert found.pop("cached_prompt_tokens").total() == 0
    assert found == wanted


async def test_a_stream_is_seen_while_it_goes_on(
    gateway: Gateway, engine: FakeEngineClient
) -> None:
    seen: list[int] = []

    def script(prompt: object, params: object) -> object:
        for _ in range(3):
            yield [SequenceDelta(index=0, text="a", token_ids=[97])]
            seen.append(engine_spend().generation_tokens)
        yield [SequenceDelta(index=0, finish_reason="stop")]

    def engine_spend() -> spend.KeySpend:
        service = gateway._main.app.state.service  # type: ignore[attr-defined]
        return service.models.backends[0].spend.by_key["alice"]

    engine.script = script  # type: ignore[assignment]
    await gateway.ask(ALICE, stream=True)
    assert seen == [1, 2, 3]


async def test_names_are_bounded(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spend, "MAX_KEYS", 1)
    for secret in (ALICE, BOB, OTHER, BOB, ALICE):
        await gateway.ask(secret)
    assert (await gateway.spent())["prompts"] == Counter(alice=2, other=3)


async def test_there_is_nothing_without_keys(http: httpx.AsyncClient) -> None:
    await http.post("/v1/completions", json={"prompt": "x"})
    assert "penstock:key_" not in (await http.get("/metrics")).text
