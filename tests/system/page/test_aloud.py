"""Answers that the browser reads aloud. Debian's Chromium has no voice: one that takes notes stands
in for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testing.serving import Server
from tests.system.page.driving import Chat, Tab, assistant, export_file, user
from tests.system.page.test_axe import check

pytestmark = pytest.mark.timeout(600)

VOICE = """
class Voice extends EventTarget {
  said = [];
  speaks = null;
  getVoices() { return [{ name: "Notes" }]; }
  speak(piece) { this.said.push(piece.text); this.speaks = piece; }
  cancel() { this.end("error", { error: "canceled" }); }
  end(kind = "end", fields = {}) {
    const piece = this.speaks;
    this.speaks = null;
    piece?.dispatchEvent(Object.assign(new Event(kind), fields));
  }
}
Object.defineProperty(window, "speechSynthesis", { value: new Voice(), configurable: true });
window.SpeechSynthesisUtterance = class extends EventTarget {
  constructor(text) { super(); this.text = text; }
};
"""
ANSWER = (
    "# Rivers\n\nThe **Rhine** is long.\n\n- one\n- two, with \\(x^2\\)\n\n"
    "```python\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n" + "A sentence of it. " * 20
)
PIECES = ["Rivers", "The Rhine is long.", "one", "two, with formula", "Code.", "a, b,", "1, 2,"]


@pytest.fixture
def chat(open_tab: Callable[..., Tab], server: Server) -> Chat:
    """A conversation with an answer, in a browser that has a voice."""
    tab = open_tab(server.url)
    tab.profile.add_init_script(VOICE)
    tab.load(tab.page.reload)
    chat = Chat(tab)
    chat.page.get_by_label("File of conversations").set_input_files(
        {
            "name": "x.json",
            "mimeType": "application/json",
            "buffer": export_file([user("Rivers?"), assistant(ANSWER)]),
        }
    )
    chat.page.get_by_role("link", name="Imported").click()
    chat.page.locator(".message math").first.wait_for(state="attached")
    return chat


def said(chat: Chat) -> list[str]:
    found: list[str] = chat.page.evaluate("speechSynthesis.said")
    return found


def test_an_answer_is_read_in_pieces_to_its_end(chat: Chat) -> None:
    chat.page.get_by_role("button", name="Read aloud").press("Enter")
    stop = chat.page.get_by_role("button", name="Stop reading")
    stop.wait_for()
    assert chat.page.evaluate("document.activeElement.title") == "Stop reading"
    check(chat.tab, ".message.assistant")
    for number in range(1, 12):
        if not stop.count():
            break
        assert len(said(chat)) == number  # One at a time.
        chat.page.evaluate("speechSynthesis.end()")
    assert chat.page.get_by_role("button", name="Read aloud").count() == 1
    assert said(chat)[: len(PIECES)] == PIECES
    assert " ".join(said(chat)[len(PIECES) :]) == ("A sentence of it. " * 20).strip()
    assert max(map(len, said(chat))) <= 220


def test_it_stops_by_button_by_key_and_with_its_conversation(chat: Chat) -> None:
    page = chat.page
    silent = "() => !speechSynthesis.speaks && !document.querySelector('[title=\"Stop reading\"]')"
    for stop in (
        lambda: page.get_by_role("button", name="Stop reading").click(),
        lambda: page.keyboard.press("Escape"),
        chat.fresh,
    ):
        page.get_by_role("button", name="Read aloud").click()
        page.get_by_role("button", name="Stop reading").wait_for()
        stop()
        chat.tab.until(silent)
    assert said(chat) == ["Rivers"] * 3
    page.get_by_role("link", name="Imported").click()
    page.get_by_role("button", name="Read aloud").click()
    page.evaluate("speechSynthesis.end('error', { error: 'voice-unavailable' })")
    page.locator(".notice.bad", has_text="can't read this aloud: voice-unavailable").wait_for()
    chat.tab.until(silent)


def test_without_a_voice_there_is_no_button(chat: Chat, open_tab: Callable[..., Tab]) -> None:
    assert chat.page.get_by_role("button", name="Read aloud").count() == 1
    chat.page.evaluate(
        "() => { speechSynthesis.getVoices = () => []; "
        "speechSynthesis.dispatchEvent(new Event('voiceschanged')); }"
    )
    assert chat.page.get_by_role("button", name="Read aloud").count() == 0
    # Nor where the browser has nothing of it.
    chat.tab.profile.add_init_script("delete window.SpeechSynthesisUtterance")
    chat.tab.profile.add_init_script(
        "Object.defineProperty(window, 'speechSynthesis', { get: () => undefined })"
    )
    bare = open_tab(chat.page.url, beside=chat.tab)
    bare.page.locator(".message").nth(1).wait_for()
    assert bare.page.get_by_role("button", name="Read aloud").count() == 0
