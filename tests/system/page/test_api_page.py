"""The API page, /docs: it shows every endpoint, its examples run, and it takes an API key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock.model.pooling_config import PoolingConfig
from testing.serving import PATIENCE, Server
from tests.gateway.fake_engine import MODEL, FakeEngineClient, welcome
from tests.gateway.keyring import ALICE, key, write
from tests.gateway.live_gateway import LiveGateway
from tests.system.page.driving import Tab

pytestmark = pytest.mark.timeout(600)


def operation(tab: Tab, path: str, method: str = "post") -> str:
    """The selector of an endpoint, which is opened."""
    words = path.strip("/").replace("/", "_")
    box = f"[id$='-{method}_{words}']"
    tab.page.locator(f"{box} .opblock-summary-control").first.click()
    return box


def execute(tab: Tab, box: str) -> tuple[int, str]:
    """Presses the button: the status and the text of the answer."""
    tab.page.locator(f"{box} .execute").click()
    answer = tab.page.locator(f"{box} .live-responses-table .response").first
    answer.wait_for()
    status = answer.locator(".response-col_status").inner_text().split()[0]
    body = answer.locator(".response-col_description pre").first.text_content() or ""
    return int(status), body


def test_it_shows_every_endpoint_and_loads_from_nowhere_else(
    open_tab: Callable[..., Tab], server: Server
) -> None:
    tab = open_tab(server.url)
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.page.get_by_role("link", name="API", exact=True).click()
    tab.page.locator(".opblock").first.wait_for()
    paths = httpx.get(f"{server.url}/openapi.json", timeout=PATIENCE).json()["paths"]
    shown = tab.page.locator(".opblock-summary-path").all_inner_texts()
    operations = [path for path, methods in paths.items() for _ in methods]
    assert sorted(each.replace("\u200b", "").strip() for each in shown) == sorted(operations)
    assert all(each.startswith((server.url, "data:", "blob:")) for each in asked), asked


def test_an_example_runs_as_it_is(open_tab: Callable[..., Tab], server: Server) -> None:
    tab = open_tab(f"{server.url}/docs")
    status, body = execute(tab, operation(tab, "/v1/chat/completions"))
    assert status == 200
    answer = json.loads(body)
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"]
    status, body = execute(tab, operation(tab, "/version", "get"))
    assert (status, json.loads(body)) == server.get("/version")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[LiveGateway]:
    config = GatewayConfig(api_keys=write(tmp_path / "keys.json", key(ALICE)))
    with LiveGateway(FakeEngineClient(), config) as gateway:
        yield gateway


def test_the_key_is_asked_for_and_sent(open_tab: Callable[..., Tab], guarded: LiveGateway) -> None:
    tab = open_tab(f"{guarded.url}/docs")
    words = tab.page.locator("#state")
    tab.until("() => document.getElementById('state').textContent.includes('requires an API key')")
    tab.excuse("401")
    box = tab.page.get_by_role("textbox", name="API key")
    box.fill("sk-wrong")
    box.press("Enter")
    tab.until("() => document.getElementById('state').textContent.includes('does not know')")
    tab.excuse("401")
    box.fill(ALICE)
    tab.page.get_by_role("button", name="Use").click()
    tab.page.locator(".opblock").first.wait_for()
    assert words.text_content() == ""
    status, body = execute(tab, operation(tab, "/v1/completions"))
    assert (status, json.loads(body)["model"]) == (200, MODEL)
    # The chat has the same key. Between two pages there is neither's element.
    tab.page.get_by_role("link", name="Chat").click()
    tab.until("(model) => document.getElementById('model')?.textContent === model", MODEL)


def test_an_embedding_model_is_not_chatted_with(open_tab: Callable[..., Tab]) -> None:
    engine = FakeEngineClient()
    pooling = PoolingConfig(mode="mean", normalize=True, size=4)
    engine.welcome = welcome(pooling=pooling, pooling_tasks=("embed", "token_embed"))
    with LiveGateway(engine) as gateway:
        tab = open_tab(gateway.url)
        tab.page.get_by_role("heading", name="This model makes vectors, not text").wait_for()
        assert tab.page.get_by_label("Message", exact=True).is_disabled()
        assert not tab.page.locator("#examples").is_visible()
        tab.page.get_by_role("link", name="API page").click()
        tab.page.locator(".opblock").first.wait_for()


def test_defaults_are_shown(open_tab: Callable[..., Tab]) -> None:
    """The server's where the model says nothing; the model's own where the server tells of them."""
    with LiveGateway(FakeEngineClient()) as gateway:
        tab = open_tab(gateway.url)
        tab.page.locator("#examples button").first.wait_for()
        place = {
            name: tab.page.locator(f"#field-{name}").get_attribute("placeholder")
            for name in ("temperature", "min_p", "repetition_penalty", "max_tokens")
        }
        assert place == {
            "temperature": "default: 1",
            "min_p": "default: 0",
            "repetition_penalty": "default: 1",
            "max_tokens": "default",
        }
        tab.page.context.route(
            "**/v1/models",
            lambda route: route.fulfill(
                json={"data": [{"id": "m", "default_sampling_params": {"temperature": 0.2}}]}
            ),
        )
        tab.load(tab.page.reload)
        tab.until(
            "() => document.getElementById('field-temperature').placeholder === 'default: 0.2'"
        )
        assert tab.page.locator("#field-top_p").get_attribute("placeholder") == "default: 1"
