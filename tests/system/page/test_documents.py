"""Documents in the page's chat: attached, read by the server, kept and sent."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.serving import Server
from tests.shared.media import pdfs
from tests.system.page.attaching import Shown
from tests.system.page.driving import POLL, Tab
from tests.system.page.test_axe import DESK, PHONE, check

pytestmark = pytest.mark.timeout(300)

REPORT = pdfs.pdf("The boat is red.", "It left on Monday.")
CODE = b"def area(width, height):\n    return width * height\n"
QUESTION = "Which colour is the boat?"
BROUGHT = """([kind, name, type, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([bytes], name, { type }));
  const how = { bubbles: true, cancelable: true };
  const [box, list] = ["message", "messages"].map((id) => document.getElementById(id));
  const pasted = new ClipboardEvent("paste", { ...how, clipboardData: dataTransfer });
  if (kind === "paste") box.dispatchEvent(pasted);
  else list.parentElement.dispatchEvent(new DragEvent("drop", { ...how, dataTransfer }));
}"""


def uri(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


class Read(Shown):
    """A chat to which documents are attached."""

    def chips(self, *texts: str, place: str = "#attached") -> None:
        """Waits until there are these, and the server has read them: a part of the text of each."""
        self.tab.until(
            """([place, texts]) => {
              const found = [...document.querySelectorAll(`${place} li`)];
              return found.length === texts.length && found.every((each, at) => (
                !each.hasAttribute("aria-busy") && each.textContent.includes(texts[at])));
            }""",
            [place, list(texts)],
        )

    def bring(self, how: str, name: str, data: bytes, kind: str) -> None:
        self.page.evaluate(BROUGHT, [how, name, kind, base64.b64encode(data).decode()])


@pytest.fixture
def read(open_tab: Callable[..., Tab], server: Server) -> Read:
    chat = Read(open_tab(server.url))
    chat.page.get_by_role("button", name="Attach documents").wait_for()
    chat.parameters(temperature="0", max_tokens="24")
    return chat


def offer_another_model(read: Read) -> Any:
    """Has the page list a second model, "other"; returns the choice of models."""

    def listed(route: Any) -> None:
        models = route.fetch().json()
        models["data"].append({**models["data"][0], "id": "other", "root": "other"})
        route.fulfill(json=models)

    read.page.route("**/v1/models", listed)
    read.tab.load(read.page.reload)
    choice = read.page.get_by_label("Model", exact=True)
    choice.wait_for()
    return choice


def tokens_of(server: Server, content: Any) -> int:
    body = {"messages": [{"role": "user", "content": content}]}
    reply = httpx.post(f"{server.url}/tokenize", json=body, timeout=90)
    return int(reply.json()["count"])


def test_documents_are_read_asked_about_and_kept(read: Read, server: Server) -> None:
    asked: list[dict[str, Any]] = []
    read.page.on(
        "request",
        lambda each: asked.append(each.post_data_json) if "chat/completions" in each.url else None,
    )
    pdf = {
        "type": "file",
        "file": {"filename": "report.pdf", "file_data": uri(REPORT, "application/pdf")},
    }
    code = {"type": "file", "file": {"filename": "area.ts", "file_data": uri(CODE, "text/plain")}}
    tokens = tokens_of(server, [pdf]) - tokens_of(server, "a") + 1
    read.attach("report.pdf", REPORT, "application/pdf")
    read.chips(f"PDF · {len(REPORT)} bytes · {tokens} tokens")
    # A browser takes such a file for a film.
    read.bring("drop", "area.ts", CODE, "video/mp2t")
    read.chips("report.pdf", "area.ts")
    read.send(QUESTION)
    read.chips(place="#attached")
    read.chips("report.pdf", "area.ts", place=".message .shown")
    assert asked[0]["messages"][-1] == {
        "role": "user",
        "content": [pdf, code, {"type": "text", "text": QUESTION}],
    }
    own = {name: value for name, value in asked[0].items() if name not in ("stream_options",)}
    reply = httpx.post(
        f"{server.url}/v1/chat/completions", json={**own, "stream": False}, timeout=90
    ).json()
    assert read.contents()[-1] == ("assistant", reply["choices"][0]["message"]["content"])
    # A question that follows brings them again, in another life of the page too.
    read.wait_kept()
    read.tab.load(read.page.reload)
    read.chips("report.pdf", "area.ts", place=".message .shown")
    read.send("And when?")
    assert asked[-1]["messages"][1] == asked[0]["messages"][-1]


def test_what_cannot_be_read_is_said_at_its_place_and_not_sent(read: Read) -> None:
    read.attach("locked.pdf", pdfs.encrypted(), "application/pdf")
    read.chips("Is encrypted and needs a password")
    read.tab.excuse("400 (Bad Request)")
    read.page.locator("#spoken", has_text="locked.pdf: Is encrypted").wait_for(state="attached")
    read.bring("paste", "notes.md", b"The boat is red.", "text/markdown")
    read.chips("Is encrypted", "notes.md")
    read.box.fill(QUESTION)
    read.page.locator("#cannot", has_text="remove it first").wait_for()
    assert read.page.get_by_role("button", name="Send").is_disabled()
    read.box.press("Enter")
    assert read.box.input_value() == QUESTION
    # By keyboard: the focus goes on to the next one's button.
    read.page.get_by_role("button", name="Remove locked.pdf").focus()
    read.page.keyboard.press("Enter")
    read.chips("notes.md")
    label = read.page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label == "Remove notes.md"
    assert read.page.locator("#cannot").is_hidden()
    read.box.press("Enter")
    read.ended()
    read.chips("notes.md", place=".message .shown")


def test_what_is_longer_than_the_context_is_said_before_it_is_sent(read: Read) -> None:
    read.attach("long.txt", b"word " * 9000, "text/plain")
    read.chips("tokens")
    words = read.page.locator("#cannot", has_text="the model's context is 8,192").inner_text()
    assert words.startswith("What is attached has 9,0")
    read.page.get_by_role("button", name="Remove long.txt").click()
    read.page.locator("#cannot").wait_for(state="hidden")


def test_a_message_waits_until_its_document_is_read(read: Read) -> None:
    held: list[Any] = []
    read.page.route("**/tokenize", lambda route: held.append(route))
    read.attach("report.pdf", REPORT, "application/pdf")
    read.page.locator("#attached", has_text="Reading").wait_for()
    read.box.fill(QUESTION)
    read.box.press("Enter")
    read.tab.until("() => document.querySelectorAll('#attached [aria-busy]').length === 1")
    assert read.box.input_value() == QUESTION
    while len(held) < 2:  # It, and what stands around any message.
        read.page.wait_for_timeout(POLL)
    while held:
        held.pop().continue_()
    read.ended()
    read.chips("tokens", place=".message .shown")


def test_a_file_that_is_gone_is_said_and_holds_nothing_up(read: Read, tmp_path: Path) -> None:
    """Another model's server has to read it once more."""
    choice = offer_another_model(read)
    own = choice.input_value()
    file = tmp_path / "notes.md"
    file.write_bytes(b"The boat is red.")
    read.page.get_by_label("Files to attach").set_input_files(file)
    read.chips("tokens")
    file.unlink()
    choice.select_option("other")
    read.chips("attach it again")
    read.page.locator("#cannot", has_text="remove it first").wait_for()
    read.page.get_by_role("button", name="Remove notes.md").click()
    choice.select_option(own)
    read.send(QUESTION)
    assert [role for role, _ in read.contents()] == ["user", "assistant"]


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_only_the_chosen_model_says_what_can_be_read(read: Read, late: bool) -> None:
    """late: whether the one that was chosen before answers after the one that is."""
    choice = offer_another_model(read)
    before = choice.input_value()
    held: list[Any] = []
    read.page.route("**/tokenize", lambda route: held.append(route))

    def wait_held(count: int) -> None:
        while len(held) < count:
            read.page.wait_for_timeout(POLL)

    def answer(model: str) -> None:
        for route in [each for each in held if each.request.post_data_json["model"] == model]:
            whole = isinstance(route.request.post_data_json["messages"][0]["content"], list)
            with read.page.expect_event("requestfinished"):
                if whole and model == before:
                    route.fulfill(status=400, json={"error": {"message": "Is too long"}})
                else:
                    route.fulfill(json={"count": 30 if whole else 10})
        read.drawn()

    read.attach("report.pdf", REPORT, "application/pdf")
    wait_held(2)  # It, and what stands around any message.
    choice.select_option("other")
    wait_held(4)
    if not late:
        answer(before)
        assert read.page.locator("#attached [aria-busy]").count() == 1
    answer("other")
    read.chips("21 tokens")
    if late:
        answer(before)
    read.tab.excuse("400 (Bad Request)")
    read.chips("21 tokens")
    assert read.page.locator("#cannot").is_hidden()
    assert read.page.get_by_role("button", name="Send").is_enabled()


def test_they_are_exported_and_imported(read: Read, tmp_path: Path) -> None:
    read.attach("report.pdf", REPORT, "application/pdf")
    read.chips("tokens")
    read.send(QUESTION)
    read.wait_kept()
    with read.page.expect_download() as download:
        read.page.get_by_role("button", name="Export all").click()
    file = tmp_path / "all.json"
    download.value.save_as(file)
    (written,) = json.loads(file.read_text())["conversations"]
    (kept,) = [each for node in written["nodes"].values() for each in node.get("attached", [])]
    assert kept["data"] == uri(REPORT, "application/pdf")
    read.page.get_by_label("File of conversations").set_input_files(file)
    read.notice("Imported 1 conversation")
    read.page.locator("#conversations li a").first.click()
    read.chips(f"{kept['tokens']} tokens", place=".message .shown")


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_amiss(
    open_tab: Callable[..., Tab], server: Server, scheme: str, size: dict[str, Any]
) -> None:
    chat = Read(open_tab(server.url, color_scheme=scheme, **size))
    chat.page.get_by_role("button", name="Attach documents").wait_for()
    chat.attach("locked.pdf", pdfs.encrypted(), "application/pdf")
    chat.attach("report.pdf", REPORT, "application/pdf")
    chat.chips("Is encrypted", "tokens")
    chat.tab.excuse("400 (Bad Request)")
    check(chat.tab)
    chat.page.get_by_role("button", name="Remove locked.pdf").click()
    chat.box.fill(QUESTION)
    chat.page.get_by_role("button", name="Send").click()
    chat.ended()
    chat.chips("tokens", place=".message .shown")
    check(chat.tab)
