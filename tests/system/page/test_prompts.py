"""The library of prompts: kept, inserted, changed, deleted, exported and imported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testing.serving import Server
from tests.system.page.driving import Chat, Tab, export_file
from tests.system.page.test_axe import PHONE, check

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def chat(open_tab: Callable[..., Tab], server: Server) -> Chat:
    return Chat(open_tab(server.url))


def names(chat: Chat) -> list[str]:
    return chat.page.locator("#prompt-list strong").all_inner_texts()


def test_prompts_by_keyboard(chat: Chat) -> None:
    page, keys = chat.page, chat.page.keyboard
    focused = "document.activeElement.id"
    chat.box.fill("Translate into German: ")
    page.get_by_role("button", name="Prompts").press("Enter")
    page.get_by_role("dialog", name="Prompts").wait_for()
    # What stands in the message box can be kept as it is.
    assert page.get_by_label("Text", exact=True).input_value() == "Translate into German: "
    page.get_by_role("button", name="Save prompt").press("Enter")
    assert page.get_by_role("alert").inner_text() == "Give the prompt a name."
    assert page.evaluate(focused) == "prompt-name"
    keys.type("German")
    keys.press("Enter")
    page.get_by_role("status").filter(has_text="Saved “German”.").wait_for()
    keys.type("Another")
    page.get_by_label("Text", exact=True).fill("<b>One</b>\ntwo")
    page.get_by_role("button", name="Save prompt").press("Enter")
    assert names(chat) == ["Another", "German"]
    assert page.locator("#prompt-list b").count() == 0
    page.get_by_role("button", name="Edit German").press("Enter")
    assert page.evaluate(focused) == "prompt-name"
    page.get_by_label("Text", exact=True).fill("Auf Deutsch:")
    keys.press("Tab")
    page.get_by_role("button", name="Save prompt").press("Enter")
    assert names(chat) == ["Another", "German"]
    page.get_by_role("button", name="Delete Another").press("Enter")
    assert names(chat) == ["German"]
    assert "German" in page.evaluate("document.activeElement.textContent")
    page.get_by_role("button", name="Undo").press("Enter")
    assert names(chat) == ["Another", "German"]
    keys.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    assert page.evaluate(focused) == "open-prompts"
    # They are there after a reload, and go where the cursor is.
    chat.tab.load(page.reload)
    chat.box.fill("Before after")
    page.evaluate("message.setSelectionRange(7, 12)")
    page.get_by_role("button", name="Prompts").press("Enter")
    page.locator("#prompt-list button", has_text="Auf Deutsch").press("Enter")
    page.get_by_role("dialog").wait_for(state="hidden")
    assert chat.box.input_value() == "Before Auf Deutsch:"
    assert page.evaluate(focused) == "message"


def test_prompts_go_with_an_export_and_come_once(chat: Chat, tmp_path: Path) -> None:
    wanted = [{"name": "A", "text": "one"}, {"name": "B", "text": "two"}]
    keep(chat, wanted)
    with chat.page.expect_download() as download:
        chat.page.get_by_role("button", name="Export all").click()
    file = tmp_path / "all.json"
    download.value.save_as(file)
    assert json.loads(file.read_text())["prompts"] == wanted
    keep(chat, wanted[:1])
    for words in ("Imported 0 conversations and 1 prompt.", "Imported 0 conversations."):
        chat.page.get_by_label("File of conversations").set_input_files(file)
        chat.page.locator(".notice p").get_by_text(words, exact=True).wait_for()
        assert json.loads(chat.page.evaluate("localStorage['penstock.prompts']")) == wanted


def keep(chat: Chat, prompts: list[dict[str, str]]) -> None:
    chat.page.evaluate(
        "(all) => localStorage.setItem('penstock.prompts', all)", json.dumps(prompts)
    )


BOUNDS: list[tuple[Any, str]] = [
    ({}, "prompts must be a list"),
    ([{"name": "a"}], "prompts[0].text must be a text that isn't empty"),
    ([{"name": "a" * 81, "text": "x"}], "prompts[0].name has 81 characters; at most 80"),
    ([{"name": "a", "text": "x" * 8001}], "prompts[0].text has 8001 characters; at most 8000"),
    ([{"name": str(n), "text": "x"} for n in range(101)], "101 prompts are too many: at most 100"),
]


def test_wrong_prompts_in_a_file_are_refused_and_nothing_is_kept(chat: Chat) -> None:
    for prompts, words in BOUNDS:
        file = json.loads(export_file([{"role": "user", "content": "x"}])) | {"prompts": prompts}
        chat.page.get_by_label("File of conversations").set_input_files(
            {
                "name": "x.json",
                "mimeType": "application/json",
                "buffer": json.dumps(file).encode(),
            }
        )
        chat.page.locator(".notice.bad", has_text=words).wait_for()
    assert chat.kept() == []
    # No more than the most are kept, whoever adds them.
    keep(chat, [{"name": f"{n:03}", "text": "x"} for n in range(100)])
    chat.page.get_by_role("button", name="Prompts").click()
    chat.page.get_by_label("Name", exact=True).fill("One more")
    chat.page.get_by_label("Text", exact=True).fill("x")
    chat.page.get_by_role("button", name="Save prompt").click()
    assert "101 prompts are too many" in chat.page.get_by_role("alert").inner_text()
    assert len(names(chat)) == 100


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_library(
    open_tab: Callable[..., Tab], server: Server, scheme: str
) -> None:
    chat = Chat(open_tab(server.url, color_scheme=scheme, **PHONE))
    keep(chat, [{"name": "Name", "text": "A long text. " * 40}])
    chat.page.get_by_role("button", name="Prompts").tap()
    chat.page.locator("#prompt-list strong").wait_for()
    assert chat.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    check(chat.tab)
