"""Searching the kept conversations: what is found is shown, marked and gone to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from testing.serving import Server
from tests.system.page.driving import Chat, Tab, assistant, export_file, user
from tests.system.page.test_axe import check

pytestmark = pytest.mark.timeout(600)

EXCERPTS = [
    ("needle in", "A Needle\n  IN hay", ["A ", "Needle IN", " hay"]),
    ("a.c", "abc a.c", ["abc ", "a.c", ""]),
    ("straße", "Die STRAßE", ["Die ", "STRAßE", ""]),
    ("i", "İ i", ["İ ", "i", ""]),
    ("x", "y" * 40 + "🌊x" + "z" * 200, ["…" + "y" * 15 + "🌊", "x", "z" * 80]),
    ("(", "f(x)", ["f", "(", "x)"]),
    ("none", "nothing", None),
    ("  ", "anything", None),
]


def test_what_is_found_in_a_text(module_tab: Tab) -> None:
    found = module_tab.page.evaluate(
        """async (cases) => {
          const { excerpt, finder } = await import("/chat/search.js");
          return cases.map(([wanted, text]) => finder(wanted) && excerpt(text, finder(wanted)));
        }""",
        [case[:2] for case in EXCERPTS],
    )
    assert found == [case[2] for case in EXCERPTS]


def test_marks_are_bounded(module_tab: Tab) -> None:
    found = module_tab.page.evaluate(
        """async () => {
          const { finder, mark, MOST_MARKED, unmark } = await import("/chat/search.js");
          const words = document.createElement("p");
          words.textContent = "x".repeat(300000);
          const first = mark(words, finder("x")) === words;
          const { size } = CSS.highlights.get("found");
          unmark();
          return { first, bounded: size === MOST_MARKED };
        }"""
    )
    assert found == {"first": True, "bounded": True}


def keep(chat: Chat, title: str, messages: list[dict[str, Any]]) -> None:
    chat.page.get_by_label("File of conversations").set_input_files(
        {
            "name": "x.json",
            "mimeType": "application/json",
            "buffer": export_file(messages, title),
        }
    )
    chat.page.get_by_role("link", name=title).wait_for()


def test_messages_are_found_by_keyboard(open_tab: Callable[..., Tab], server: Server) -> None:
    chat = Chat(open_tab(server.url))
    page, keys = chat.page, chat.page.keyboard
    long = [user("Hello"), assistant("Some words. " * 60)] * 12
    # The message is in a branch beside the one that is shown.
    branch = {
        **assistant("Amber is a *fossil resin* of trees."),
        "id": "old",
        "parent": "n8",
        "at": 0,
    }
    keep(chat, "A long one", [*long, branch, {**user("And?"), "parent": "old"}, *long[:1]])
    keep(chat, "Fossils", [user("x")])
    keep(chat, "Another", [user("<b>FOSSIL</b> fuels"), assistant("None.")])
    box = page.get_by_label("Search conversations")
    box.fill("fossil")
    hits = page.locator("#conversations .hit")
    chat.tab.until("() => document.querySelectorAll('#conversations .hit').length === 2")
    assert hits.all_inner_texts() == [
        "<b>FOSSIL</b> fuels",
        "Amber is a *fossil resin* of trees.",
    ]
    marked = page.locator("#conversations mark").all_inner_texts()
    assert [words.lower() for words in marked] == ["fossil"] * 3
    assert page.locator("#conversations b").count() == 0
    check(chat.tab, "#drawer")
    chat.tab.until(
        "() => document.getElementById('spoken').textContent === '3 conversations found'"
    )
    box.press("ArrowDown")
    keys.press("ArrowDown")
    keys.press("ArrowDown")
    assert "A long one" in page.evaluate("document.activeElement.textContent")
    keys.press("Enter")
    page.locator(".message", has_text="Amber").wait_for()
    chat.tab.until("() => document.activeElement.dataset.id === 'old'")
    assert page.evaluate("[...CSS.highlights.get('found')].map(String)") == ["fossil"]
    seen = """() => { const [range] = CSS.highlights.get("found");
      const [word, place] = [range.getBoundingClientRect(), scroller.getBoundingClientRect()];
      return word.top > place.top && word.bottom < place.bottom; }"""
    chat.tab.until(seen)
    box.press("Escape")
    chat.tab.until("() => document.querySelectorAll('#conversations li').length === 3")
    assert page.evaluate("CSS.highlights.has('found')") is False
    # To look at something changes nothing: the list's order is the same.
    chat.listed("Another", "Fossils", "A long one")
    box.fill("amber of the sea")
    page.get_by_text("Nothing found.").wait_for()
