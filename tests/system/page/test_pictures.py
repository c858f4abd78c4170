"""Pictures in the page's chat: attached, shown, kept and sent, and what a model says of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testing.recordings import tones, wav
from testing.serving import Server
from tests.shared.media.videos import movie
from tests.system.page.attaching import (
    CIRCLE,
    DROPPED,
    PASTED,
    STARS,
    Shown,
    data_uri,
    png,
)
from tests.system.page.driving import Tab
from tests.system.page.test_axe import DESK, PHONE, check

pytestmark = pytest.mark.timeout(300)

QUESTION = "What is in the picture?"
FILES = """async () => {
  const { Store } = await import("/chat/store.js");
  const store = await Store.open();
  const records = await store.loadAll();
  const files = (await Promise.all(records.map(({ id }) => store.mediaOf(id)))).flat();
  return files.map(({ blob }) => blob.size);
}"""


@pytest.fixture
def shown(open_tab: Callable[..., Tab], seeing_server: Server) -> Shown:
    chat = Shown(open_tab(seeing_server.url))
    chat.page.get_by_role("button", name="Attach pictures").wait_for()
    chat.parameters(temperature="0", max_tokens="24")
    return chat


def test_a_picture_is_attached_asked_about_and_kept(shown: Shown) -> None:
    shown.attach("stars.png", png(STARS))
    shown.attached("stars.png")
    shown.send(QUESTION)
    assert shown.bodies() == [QUESTION, STARS.words]
    shown.attached()
    shown.in_messages("stars.png")
    # A question that follows is about it, in another life of the page too.
    shown.wait_kept()
    shown.tab.load(shown.page.reload)
    shown.in_messages("stars.png")
    shown.send("Which colour?")
    assert shown.bodies()[-1] == "Blue."
    # An edited question is about the same picture, and needs no words of its own.
    shown.page.locator(".message.user").first.hover()
    shown.page.locator(".message.user").first.get_by_role("button", name="Edit").click()
    shown.page.locator(".edit textarea").fill("How many are there?")
    shown.page.get_by_role("button", name="Send", exact=True).first.click()
    shown.ended()
    assert shown.bodies() == ["How many are there?", "Three."]
    shown.in_messages("stars.png")


def test_pictures_come_by_paste_and_drop_and_go_by_their_button(shown: Shown) -> None:
    shown.brought(PASTED, "a.png", png(CIRCLE), "")
    shown.attached("a.png")
    shown.brought(PASTED, "of a table.png", png(CIRCLE), "its text")
    assert shown.brought(DROPPED, "b.png", png(STARS))
    shown.attached("a.png", "b.png")
    # What misses the chat is attached nowhere, and the browser doesn't leave the page for it.
    assert shown.brought(DROPPED, "c.png", png(STARS), "#conversations")
    shown.attached("a.png", "b.png")
    shown.attach("c.png", png(CIRCLE, 2))
    shown.attached("a.png", "b.png", "c.png")
    # By keyboard: the focus goes on to the next one's button, and at last to the box.
    shown.page.get_by_role("button", name="Remove a.png").focus()
    shown.page.keyboard.press("Enter")
    shown.attached("b.png", "c.png")
    focused = "document.activeElement.getAttribute('aria-label')"
    assert shown.page.evaluate(focused) == "Remove b.png"
    shown.page.keyboard.press("Enter")
    shown.attached("c.png")
    shown.page.keyboard.press("Enter")
    shown.attached()
    assert shown.page.evaluate("document.activeElement.id") == "message"
    assert shown.page.get_by_role("button", name="Send").is_disabled()
    # A picture is a message by itself, and two are asked about at once.
    shown.brought(DROPPED, "b.png", png(STARS))
    shown.attached("b.png")
    shown.attach("c.png", png(CIRCLE, 2))
    shown.attached("b.png", "c.png")
    assert shown.page.get_by_role("button", name="Send").is_enabled()
    shown.send("What is in the pictures?")
    assert shown.bodies()[-1] == f"{STARS.words} {CIRCLE.words}"
    shown.in_messages("b.png", "c.png")


def test_what_cannot_be_attached_is_said(shown: Shown, tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(20 * 1024 * 1024 + 1)
    for name, content, kind, words in (
        ("x.svg", b"<svg/>", "image/svg+xml", "“x.svg” is image/svg+xml"),
        ("x.wav", b"RIFF", "audio/wav", "can't hear"),
        ("x.png", b"", "image/png", "“x.png” is empty"),
    ):
        shown.attach(name, content, kind)
        shown.notice(words)
        shown.attached()
    shown.page.get_by_label("Files to attach").set_input_files(large)
    shown.notice("at most 20.0 MiB")
    shown.attached()


def test_a_picture_that_is_none_is_the_servers_to_refuse(shown: Shown) -> None:
    shown.attach("broken.png", b"\x89PNG\r\n\x1a\nno more")
    shown.page.locator("#attached", has_text="broken.png").wait_for()
    shown.send(QUESTION)
    assert "Error 400" in shown.page.locator(".problem").inner_text()
    shown.tab.excuse("400 (Bad Request)")


def test_pictures_are_exported_imported_and_forgotten(shown: Shown, tmp_path: Path) -> None:
    content = png(STARS)
    shown.attach("stars.png", content)
    shown.attached("stars.png")
    shown.send(QUESTION)
    shown.wait_kept()
    with shown.page.expect_download() as download:
        shown.page.get_by_role("button", name="Export all").click()
    file = tmp_path / "all.json"
    download.value.save_as(file)
    (written,) = json.loads(file.read_text())["conversations"]
    (picture,) = [each for node in written["nodes"].values() for each in node.get("attached", [])]
    assert base64.b64decode(picture["data"].partition(",")[2]) == content
    row = shown.page.locator("#conversations li").first
    row.hover()
    row.get_by_role("button", name="Delete").click()
    shown.page.locator("#empty").wait_for()
    assert shown.page.evaluate(FILES) == []
    shown.page.get_by_role("button", name="Undo").click()
    shown.in_messages("stars.png")
    shown.page.get_by_label("File of conversations").set_input_files(file)
    shown.notice("Imported 1 conversation")
    assert shown.page.evaluate(FILES) == [len(content)] * 2
    picture["data"] = "data:image/png;base64,&"
    file.write_text(json.dumps({"format": "penstock-conversations", "conversations": [written]}))
    shown.page.get_by_label("File of conversations").set_input_files(file)
    shown.notice("attached[0].data is not valid base64")


def test_a_full_storage_keeps_no_picture_and_asks_all_the_same(shown: Shown) -> None:
    session = shown.tab.profile.new_cdp_session(shown.page)
    origin = shown.page.evaluate("location.origin")
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin, "quotaSize": 1000})
    shown.attach("stars.png", png(STARS))
    shown.attached("stars.png")
    shown.send(QUESTION)
    shown.notice("what is attached goes with the page")
    assert shown.bodies() == [QUESTION, STARS.words]
    shown.in_messages("stars.png")


def test_a_model_that_sees_nothing_says_so(
    open_tab: Callable[..., Tab], server: Server, tmp_path: Path
) -> None:
    chat = Shown(open_tab(server.url))
    name = server.model
    chat.page.get_by_role("button", name="Attach documents").wait_for()
    chat.brought(DROPPED, "a.png", png(CIRCLE))
    chat.notice(f"{name} can't see: pictures can't be attached.")
    chat.attached()
    attached = [{"type": "image/png", "name": "a.png", "data": data_uri(png(CIRCLE))}]
    node = {"id": "n", "parent": "", "role": "user", "content": QUESTION, "attached": attached}
    file = {"format": "penstock-conversations", "conversations": [{"nodes": {"n": node}}]}
    (tmp_path / "x.json").write_text(json.dumps(file))
    chat.page.get_by_label("File of conversations").set_input_files(tmp_path / "x.json")
    chat.page.locator("#conversations li a").first.click()
    chat.in_messages("a.png")
    chat.page.locator("#cannot", has_text=f"{name} can't see: it can't go on").wait_for()


def test_sounds_are_attached_where_the_model_hears(
    open_tab: Callable[..., Tab], server: Server
) -> None:
    """The server's part is played: what it says of its model, and what it is sent."""
    sent: list[dict[str, Any]] = []

    def model(route: Any) -> None:
        found = route.fetch().json()
        found["data"][0]["media"] = {"audio": 1}
        route.fulfill(json=found)

    def asked(route: Any) -> None:
        sent.append(route.request.post_data_json)
        said = {"choices": [{"delta": {"content": "Seven."}, "finish_reason": "stop"}]}
        body = f"data: {json.dumps(said)}\n\ndata: [DONE]\n\n"
        route.fulfill(body=body, content_type="text/event-stream")

    tab = open_tab(server.url)
    tab.page.route("**/v1/models", model)
    tab.page.route("**/v1/chat/completions", asked)
    tab.load(tab.page.reload)
    chat = Shown(tab)
    chat.page.get_by_role("button", name="Attach sounds").wait_for()
    sound = wav(tones(0.1, 1))
    chat.attach("seven.wav", sound, "audio/wav")
    chat.page.locator("#attached").get_by_label("seven.wav", exact=True).wait_for()
    chat.attach("eight.wav", sound, "audio/wav")
    chat.notice("This conversation has 1 sound, and the model takes no more in a prompt.")
    chat.send("Which number is it?")
    assert chat.bodies() == ["Which number is it?", "Seven."]
    shown = ".message audio"
    tab.until("(place) => document.querySelector(place)?.readyState >= 1", shown)
    url = f"data:audio/wav;base64,{base64.b64encode(sound).decode()}"
    assert sent[0]["messages"][1:] == [
        {
            "role": "user",
            "content": [
                {"type": "audio_url", "audio_url": {"url": url}},
                {"type": "text", "text": "Which number is it?"},
            ],
        }
    ]


def test_videos_are_attached_where_the_model_watches(
    open_tab: Callable[..., Tab], server: Server
) -> None:
    """And what a model takes that isn't loaded is known once it is. The server's part is played."""
    sent: list[dict[str, Any]] = []

    def model(route: Any) -> None:
        found = route.fetch().json()
        if sent:
            found["data"][0]["media"] = {"image": 2, "video": 1}
        else:
            found["data"][0] |= {"max_model_len": None, "state": "absent"}
        route.fulfill(json=found)

    def asked(route: Any) -> None:
        sent.append(route.request.post_data_json)
        said = {"choices": [{"delta": {"content": "It moves."}, "finish_reason": "stop"}]}
        body = f"data: {json.dumps(said)}\n\ndata: [DONE]\n\n"
        route.fulfill(body=body, content_type="text/event-stream")

    tab = open_tab(server.url)
    tab.page.route("**/v1/models", model)
    tab.page.route("**/v1/chat/completions", asked)
    tab.load(tab.page.reload)
    chat, file = Shown(tab), movie("libvpx-vp9", "webm", 10)
    chat.page.get_by_role("button", name="Attach documents").wait_for()
    chat.attach("clip.webm", file, "video/webm")
    chat.notice("is not loaded: what can be attached is known after a first message.")
    chat.send("Hello")
    chat.page.get_by_role("button", name="Attach pictures, videos or documents").wait_for()
    chat.attach("clip.webm", file, "video/webm")
    chat.attach("clip.webm", file, "video/webm")
    chat.notice("This conversation has 1 video, and the model takes no more in a prompt.")
    chat.page.locator("#attached").get_by_label("clip.webm", exact=True).wait_for()
    chat.send("What happens?")
    tab.until("(place) => document.querySelector(place)?.readyState >= 1", ".message video")
    url = f"data:video/webm;base64,{base64.b64encode(file).decode()}"
    assert sent[1]["messages"][-1]["content"] == [
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "text", "text": "What happens?"},
    ]


def test_what_is_attached_and_another_model_does_not_take_is_said(shown: Shown) -> None:
    shown.attach("stars.png", png(STARS))
    shown.attached("stars.png")

    def blind(route: Any) -> None:
        found = route.fetch().json()
        found["data"][0]["media"] = {}
        route.fulfill(json=found)

    shown.page.route("**/v1/models", blind)
    # Another key: the models are asked for again.
    shown.page.get_by_role("button", name="API key").click()
    shown.page.get_by_role("button", name="Save").click()
    shown.page.locator("#cannot", has_text="can't see: it can't go on with the pictures").wait_for()
    shown.page.get_by_role("button", name="Remove stars.png").click()
    shown.page.locator("#cannot").wait_for(state="hidden")


def test_what_was_kept_before_there_were_pictures_is_kept(
    open_tab: Callable[..., Tab], server: Server
) -> None:
    """A database of version 1 is taken over, and takes files."""
    found = open_tab(server.url).page.evaluate(
        """async () => {
          await new Promise((done) => {
            const request = indexedDB.open("older", 1);
            request.onupgradeneeded = () => {
              for (const name of ["records", "heads"]) {
                request.result.createObjectStore(name, { keyPath: "id" })
                  .put({ id: "a", title: "A", updated: 1, nodes: {} });
              }
            };
            request.onsuccess = () => (request.result.close(), done());
          });
          const { Store } = await import("/chat/store.js");
          const store = await Store.open("older");
          await store.saveMedia("a", [{ id: "f", blob: new Blob(["xyz"]) }]);
          const sizes = (await store.mediaOf("a")).map(({ blob }) => blob.size);
          const title = (await store.load("a")).title;
          await store.remove("a");
          return [title, sizes, (await store.loadMedia("f")) ?? null, await store.list()];
        }"""
    )
    assert found == ["A", [3], None, []]


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_amiss(
    open_tab: Callable[..., Tab], seeing_server: Server, scheme: str, size: dict[str, Any]
) -> None:
    chat = Shown(open_tab(seeing_server.url, color_scheme=scheme, **size))
    chat.page.get_by_role("button", name="Attach pictures").wait_for()
    chat.attach("stars.png", png(STARS))
    chat.attached("stars.png")
    check(chat.tab)
    chat.box.fill(QUESTION)
    chat.page.get_by_role("button", name="Send").click()
    chat.ended()
    chat.in_messages("stars.png")
    chat.attach("circle.png", png(CIRCLE))
    chat.attached("circle.png")
    check(chat.tab)
