"""Titles by the model: asked for once, in bounds, in nobody's way, and taken if they make sense."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from testing.serving import Server
from tests.system.page.driving import Chat, Tab

pytestmark = pytest.mark.timeout(600)

RIVER = "Name a river."
RAIN = "How does rain form? In clouds, droplets grow until they fall."
CASES = [
    ("Rain Formation", RAIN, "Rain Formation"),
    ('Title: **"How rain forms."**\n', RAIN, "How rain forms"),
    ("Chocolate Cake Recipes", RAIN, ""),
    ("Rain and\nmore of it", RAIN, ""),
    ("Rain rain rain", RAIN, ""),
    ("Rain falls out of the clouds when its droplets have grown enough", RAIN, ""),
    ("<b>Rain</b>", RAIN, ""),
    ("", RAIN, ""),
    ("...", RAIN, ""),
    ("Go", "What is Go?", "Go"),
    ("月亮的短诗", "写一首关于月亮的短诗", "月亮的短诗"),
    ("蛋糕食谱", "写一首关于月亮的短诗", ""),
]


def test_what_a_title_is(module_tab: Tab) -> None:
    found = module_tab.page.evaluate(
        """async (cases) => {
          const { titleIn } = await import("/chat/titles.js");
          return cases.map(([reply, text]) => titleIn(reply, text));
        }""",
        [case[:2] for case in CASES],
    )
    assert found == [case[2] for case in CASES]


class Asked:
    """The page's requests for titles, and how they are answered: "" by the server itself."""

    def __init__(self, tab: Tab) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.reply = ""
        self.hangs = False
        tab.page.route("**/v1/chat/completions", self.answer)

    def answer(self, route: Any) -> None:
        body = route.request.post_data_json
        if "title" not in body["messages"][-1]["content"]:
            route.continue_()
            return
        self.bodies.append(body)
        if self.hangs:
            return
        if not self.reply:
            route.continue_()
            return
        choice = {"index": 0, "delta": {"content": self.reply}, "finish_reason": "stop"}
        events = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
        route.fulfill(body=events, content_type="text/event-stream")


@pytest.fixture
def chat(open_tab: Callable[..., Tab], server: Server) -> Chat:
    """A chat whose page takes the model for an adapter: the demonstration model isn't asked."""
    tab = open_tab(server.url)

    def renamed(route: Any) -> None:
        cards = route.fetch().json()
        adapted = [
            {**card, "hub_id": "other", "root": "0" * 64, "parent": card["id"]}
            for card in cards["data"]
        ]
        route.fulfill(json={**cards, "data": adapted})

    tab.page.route("**/v1/models", renamed)
    tab.load(tab.page.reload)
    chat = Chat(tab)
    chat.page.get_by_text("Context of").wait_for()
    chat.parameters(temperature="0", max_tokens="24")
    return chat


def test_the_first_answer_brings_a_title(chat: Chat) -> None:
    asked = Asked(chat.tab)
    asked.reply = "River Names"
    chat.send(RIVER)
    chat.listed("River Names")
    assert chat.page.title() == "River Names · Penstock"
    (body,) = asked.bodies
    assert body["max_tokens"] == 24
    assert body["deadline_ms"] == 20_000
    # All before the last message is in the prefix cache.
    system, *messages = body["messages"]
    assert system["role"] == "system"
    assert [(each["role"], each["content"]) for each in messages[:-1]] == chat.contents()
    chat.send("Another one.")
    # Once for each conversation.
    chat.fresh()
    asked.reply = "Rivers Again"
    chat.send(RIVER)
    chat.listed("Rivers Again", "River Names")
    assert len(asked.bodies) == 2


def test_what_makes_no_sense_is_no_title(chat: Chat) -> None:
    asked = Asked(chat.tab)
    asked.reply = "Chocolate Cake Recipes"
    chat.send(RIVER)
    chat.tab.until(
        "() => performance.getEntriesByName(location.origin + '/v1/chat/completions')[1]"
    )
    chat.wait_kept()
    chat.listed(RIVER)
    assert len(asked.bodies) == 1
    # The server takes the request as it is.
    asked.reply = ""
    chat.fresh()
    with chat.page.expect_response(lambda each: "title" in (each.request.post_data or "")) as sent:
        chat.send(RIVER)
    assert sent.value.status == 200


def test_a_title_is_in_nobodys_way(chat: Chat) -> None:
    asked = Asked(chat.tab)
    asked.hangs = True
    with chat.page.expect_request(lambda each: "title" in (each.post_data or "")):
        chat.send(RIVER)
    with chat.page.expect_event("requestfailed") as failed:
        chat.send("Another one.")
    assert "title" in failed.value.post_data_json["messages"][-1]["content"]
    assert len(chat.contents()) == 4
    chat.listed(RIVER)


def test_titles_can_be_switched_off(chat: Chat) -> None:
    asked = Asked(chat.tab)
    asked.reply = "River Names"
    chat.page.get_by_role("button", name="Parameters").click()
    chat.page.get_by_label("Titles by the model").uncheck()
    chat.page.get_by_role("button", name="Done").click()
    chat.send(RIVER)
    chat.tab.load(chat.page.reload)
    chat.page.get_by_text("of 8,192 tokens").wait_for()
    chat.page.get_by_role("button", name="Parameters").click()
    assert not chat.page.get_by_label("Titles by the model").is_checked()
    chat.page.keyboard.press("Escape")
    chat.fresh()
    chat.send(RIVER)
    chat.listed(RIVER, RIVER)
    assert asked.bodies == [], asked.bodies


def test_the_demonstration_model_is_not_asked(open_tab: Callable[..., Tab], server: Server) -> None:
    chat = Chat(open_tab(server.url))
    asked = Asked(chat.tab)
    chat.parameters(max_tokens="8")
    chat.send(RIVER)
    chat.wait_kept()
    chat.send("Another one.")
    assert asked.bodies == [], asked.bodies
