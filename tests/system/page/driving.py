"""The page as a person drives it: by the names of its controls."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Locator, Page, Route

TIMEOUT = 120.0
"""Seconds that a busy machine may take; Playwright's own bound is 30."""
POLL = 60
"""Milliseconds between looks at a page: each look takes three processes' time."""
LABELS = {
    "system": "System prompt",
    "temperature": "Temperature",
    "max_tokens": "Longest answer",
    "repetition_penalty": "Repetition penalty",
    "seed": "Seed",
    "stop": "Stop texts",
    "schema": "JSON schema of the answer",
    "tools": "Tools",
}


class Tab:
    """One tab. complaints: what the console said of errors, and scripts that failed."""

    def __init__(self, profile: BrowserContext, url: str) -> None:
        self.profile = profile
        self.complaints: list[str] = []
        profile.set_default_timeout(1000 * TIMEOUT)
        self.page: Page = profile.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(f"pageerror: {error}"))
        self.load(lambda: self.page.goto(url))

    def load(self, act: Callable[[], Any]) -> None:
        """Does what loads the page; again where the machine's network changed meanwhile, as it does
        when a container is started: Chromium then gives up whatever it loads."""
        for _ in range(5):
            act()
            if not any("ERR_NETWORK_CHANGED" in each for each in self.complaints):
                return
            self.complaints.clear()
            act = self.page.reload

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def until(self, function: str, argument: Any = None) -> None:
        """Waits until the function is true. Playwright's own way is refused by the page's policy:
        it makes code of text."""
        deadline = time.monotonic() + TIMEOUT
        while not self.page.evaluate(function, argument):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"not within {TIMEOUT} s: {function}")
            self.page.wait_for_timeout(POLL)

    def excuse(self, words: str) -> None:
        """Takes complaints with these words for its own; there must be one, now or soon: the
        console's messages come on their own."""
        deadline = time.monotonic() + TIMEOUT
        while not any(words in each for each in self.complaints):
            if time.monotonic() >= deadline:
                raise TimeoutError(repr((words, self.complaints)))
            self.page.wait_for_timeout(POLL)
        self.complaints[:] = [each for each in self.complaints if words not in each]


class Chat:
    """The chat of a tab."""

    def __init__(self, tab: Tab) -> None:
        self.tab, self.page = tab, tab.page
        self.box = self.page.get_by_label("Message", exact=True)
        self.page.locator("#examples button").first.wait_for(state="attached")

    def parameters(self, **texts: str) -> None:
        """Types these into the parameters' boxes."""
        self.page.get_by_role("button", name="Parameters").click()
        for name, text in texts.items():
            self.page.get_by_label(LABELS[name], exact=True).fill(text)
        self.page.get_by_role("button", name="Done").click()
        self.page.get_by_role("dialog").wait_for(state="hidden")

    def endless(self) -> None:
        """Has each answer go on up to its limit: whether a model ends one depends on its bits, and
        so on the processor."""

        def asked(route: Route) -> None:
            body = {**json.loads(route.request.post_data or "{}"), "ignore_eos": True}
            route.continue_(post_data=json.dumps(body))

        self.page.route("**/v1/chat/completions", asked)

    def fresh(self) -> None:
        """Begins a new conversation, which comes with the event of a changed address."""
        self.page.get_by_role("button", name="New conversation").click()
        self.page.locator("#empty").wait_for()

    def send(self, text: str, *, wait: bool = True) -> None:
        self.box.fill(text)
        self.box.press("Enter")
        if wait:
            self.ended()

    def ended(self) -> None:
        """Waits until no answer is being written."""
        self.tab.until(
            "() => !document.querySelector('.running') && document.getElementById('stop').hidden"
        )

    def grown(self, characters: int = 1) -> None:
        """Waits until the last answer has begun."""
        self.tab.until(
            "(n) => (document.querySelector('.assistant:last-child .body')?.textContent ?? '')"
            ".length >= n",
            characters,
        )

    def bodies(self) -> list[str]:
        """The texts that are shown, the first message first."""
        self.drawn()
        return self.page.locator(".message .body").all_inner_texts()

    def drawn(self) -> None:
        """Waits for the browser's next frames: a message (`content-visibility: auto`) has no inner
        text before one has found it to be on the screen."""
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def last(self) -> Locator:
        self.drawn()
        return self.page.locator(".message").last

    def listed(self, *titles: str) -> None:
        """Waits until the list names these and no others, the latest first: it is drawn once they
        have been written down."""
        self.tab.until(
            """(titles) => JSON.stringify(titles) === JSON.stringify(
              [...document.querySelectorAll("#conversations li a")].map((a) => a.textContent))""",
            list(titles),
        )

    def kept(self) -> list[dict[str, Any]]:
        """The records that the browser keeps, the latest first."""
        found = self.page.evaluate(
            """async () => {
              const { Store } = await import("/chat/store.js");
              return (await Store.open()).loadAll();
            }"""
        )
        return sorted(found, key=lambda record: -record["updated"])

    def contents(self) -> list[tuple[str, str]]:
        """(role, content) of what is kept of the conversation that is shown, every branch."""
        self.wait_kept()
        shown = self.page.evaluate("location.hash.split('/')[1]")
        (record,) = [each for each in self.kept() if each["id"] == shown]
        nodes = [node for node in record["nodes"].values() if not node.get("gone")]
        return [(node["role"], node["content"]) for node in sorted(nodes, key=lambda n: n["at"])]

    def wait_kept(self) -> None:
        """Waits until what is shown has been written down."""
        self.tab.until(
            """async () => {
              const { Store } = await import("/chat/store.js");
              const kept = await (await Store.open()).load(location.hash.split("/")[1]);
              return kept && Object.values(kept.nodes).every((node) => node.state !== "open");
            }"""
        )


def answered(url: str, messages: list[dict[str, str]], **fields: Any) -> str:
    """The whole answer that the API gives by itself, asked as the fixture `chat` does."""
    [card, *_] = httpx.get(f"{url}/v1/models", timeout=90).json()["data"]
    set_here = {"temperature": 0, "max_tokens": 24, "repetition_penalty": 1}
    asked = {**card["chat_params"], **set_here, **fields}
    system = {"role": "system", "content": asked.pop("system")}
    body = {"messages": [system, *messages], **asked}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=90)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def export_file(nodes: list[dict[str, Any]], title: str = "Imported") -> bytes:
    """A file as the page's export writes it, with these messages below one another."""
    made, parent = {}, ""
    for number, node in enumerate(nodes):
        made[f"n{number}"] = {"id": f"n{number}", "parent": parent, "at": number, **node}
        parent = f"n{number}"
    conversation = {"title": title, "nodes": made, "chosen": {}, "settings": {}}
    file = {"format": "penstock-conversations", "version": 1, "conversations": [conversation]}
    return json.dumps(file).encode()
