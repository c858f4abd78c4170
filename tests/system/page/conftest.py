"""A real Chromium for the tests of this folder. They are not async: Playwright runs a loop."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from testing.serving import Server
from tests.system.page.driving import Chat, Tab

CHROMIUM = "/usr/bin/chromium"


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """Closed with the module: an event loop of Playwright's that goes on would be in the way of
    other modules' async tests."""
    with chromium() as running:
        yield running


@contextmanager
def chromium(*flags: str) -> Iterator[object]:
    """flags: beside those that a container needs."""
    if not os.path.exists(CHROMIUM) and not shutil.which("chromium"):
        pytest.skip("there is no chromium: install Debian's package chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="the dev extra has playwright")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=CHROMIUM if os.path.exists(CHROMIUM) else shutil.which("chromium"),
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", *flags],
        )
        yield running
        running.close()


@pytest.fixture
def open_tab(browser: object) -> Iterator[Callable[..., Tab]]:
    """Opens a tab in a profile of its own: `open_tab(server.url)`; more in the same profile with
    `beside=tab`. A console error or a violation of the policy that a test doesn't take for its own
    fails it."""
    with tabs_of(browser) as make:
        yield make


@pytest.fixture(scope="module")
def module_tab(browser: object, server: Server) -> Iterator[Tab]:
    """One tab of the shared server's page, for tests that leave it as it was."""
    with tabs_of(browser) as make:
        yield make(server.url)


@contextmanager
def tabs_of(browser: object) -> Iterator[Callable[..., Tab]]:
    tabs: list[Tab] = []

    def make(url: str, beside: Tab | None = None, **context: object) -> Tab:
        # A dot that breathes has all of the page composed sixty times a second: half of what
        # Chromium takes here. The live view's tests have its motion.
        still = {"reduced_motion": "reduce", **context}
        profile = beside.profile if beside else browser.new_context(**still)  # type: ignore[attr-defined]
        tab = Tab(profile, url)
        tabs.append(tab)
        return tab

    yield make
    complaints = [complaint for tab in tabs for complaint in tab.complaints]
    for tab in tabs:
        tab.profile.close()
    assert complaints == []


@pytest.fixture
def chat(open_tab: Callable[..., Tab], server: Server) -> Chat:
    """A tab of the shared server's page, with temperature 0 and short answers; without the penalty
    that a chat with this model adds, it goes on as long as it is let."""
    chat = Chat(open_tab(server.url))
    chat.parameters(temperature="0", max_tokens="24", repetition_penalty="1")
    return chat
