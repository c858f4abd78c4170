"""Who uses the page with a keyboard, a screen reader, a phone, or in the dark."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock_gateway
from testing.serving import Server
from tests.system.page.driving import Chat, Tab, export_file

pytestmark = pytest.mark.timeout(600)

STYLE = Path(penstock_gateway.__file__).parent / "web" / "style.css"
PHONE = {
    "viewport": {"width": 360, "height": 640},
    "has_touch": True,
    "is_mobile": True,
    "device_scale_factor": 2,
}


def luminance(colour: str) -> float:
    """Relative, as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def palettes() -> list[dict[str, str]]:
    """Light, dark by preference, dark by choice."""
    blocks = re.findall(r":root[^{]*\{(.*?)\}", STYLE.read_text(), re.DOTALL)
    found = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in blocks]
    assert len(found) == 3
    return found


def test_every_text_can_be_read() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    light, preferred, chosen = palettes()
    assert preferred == chosen
    for colours in (light, chosen):
        for name in ("fg", "muted", "accent", "ok", "warn", "bad"):
            for ground in ("bg", "panel", "soft", "code"):
                ratio = contrast(colours[name], colours[ground])
                assert ratio >= 4.5, (name, ground, round(ratio, 2))
        coloured = [name for name in colours if name.startswith("tok-")]
        assert len(coloured) == 6
        for name in coloured:
            assert contrast(colours[name], colours["code"]) >= 4.5, name
        assert contrast(colours["on-accent"], colours["accent"]) >= 4.5


def test_on_a_phone_the_message_has_the_whole_width(
    open_tab: Callable[..., Tab], server: Server
) -> None:
    """What goes with it stands a line below, all of it within the form."""
    tab = open_tab(server.url, **PHONE)
    tab.page.locator("#open-prompts").wait_for()
    form = tab.page.locator("#composer").bounding_box()
    box = tab.page.locator("#message").bounding_box()
    send = tab.page.locator("#send").bounding_box()
    assert form is not None
    assert box is not None
    assert send is not None
    assert box["width"] > 0.9 * form["width"]
    assert box["y"] + box["height"] <= send["y"]
    assert send["x"] + send["width"] <= form["x"] + form["width"]
    assert send["y"] + send["height"] <= form["y"] + form["height"]


def test_dark_by_preference_and_by_choice(open_tab: Callable[..., Tab], server: Server) -> None:
    tab = open_tab(server.url, color_scheme="dark")
    light, dark, _ = palettes()
    ground = "getComputedStyle(document.documentElement).getPropertyValue('--bg').trim()"
    assert tab.page.evaluate(ground) == dark["bg"]
    tab.page.get_by_role("button", name="Theme: as the system").click()
    assert tab.page.evaluate(ground) == light["bg"]
    tab.load(tab.page.reload)
    assert tab.page.evaluate(ground) == light["bg"]
    tab.page.emulate_media(color_scheme="light")
    tab.page.get_by_role("button", name="Theme: light").click()
    assert tab.page.evaluate(ground) == dark["bg"]
    tab.page.get_by_role("button", name="Theme: dark").click()
    assert tab.page.evaluate(ground) == light["bg"]


def test_what_a_screen_reader_finds(chat: Chat) -> None:
    from playwright.sync_api import expect

    expect(chat.page.locator("body")).to_match_aria_snapshot(
        """
        - link "Skip to the message box"
        - complementary "Conversations":
          - button "New conversation"
          - text: Search conversations
          - searchbox "Search conversations"
          - navigation "Kept conversations"
          - button "Export all"
          - button "Import"
        - banner:
          - heading "Penstock" [level=1]
          - navigation "Views":
            - link "Chat"
            - link "Live"
            - link "API"
          - button /Parameters/
          - button "API key"
          - button /Theme/
        - main "Chat":
          - region "What shall we look into?":
            - heading "What shall we look into?" [level=2]
            - list "Examples"
          - form "New message":
            - button "Attach documents"
            - textbox "Message"
            - button "Send" [disabled]
        """
    )
    chat.send("Name a river.")
    expect(chat.page.locator("#messages")).to_match_aria_snapshot(
        """
        - list "Messages":
          - listitem:
            - heading "You" [level=2]
            - paragraph: Name a river.
            - group "Your message":
              - button "Copy"
              - button "Edit"
              - button "Delete"
          - listitem:
            - heading "Answer" [level=2]
            - group "This answer":
              - button "Copy"
              - button "Edit"
              - button "Regenerate"
              - button "Delete"
        """
    )


def test_every_control_has_a_name(chat: Chat) -> None:
    chat.send("Name a river.")
    chat.page.get_by_role("button", name="Parameters").click()
    nameless = chat.page.evaluate(
        """() => [...document.querySelectorAll("button, input, textarea, a, summary, dialog, nav")]
          .filter((each) => !(each.getAttribute("aria-label") || each.textContent.trim()
            || each.labels?.length || each.getAttribute("aria-labelledby")))
          .map((each) => each.outerHTML)"""
    )
    assert nameless == []
    twice = chat.page.evaluate(
        """() => { const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
          return ids.filter((id, place) => ids.indexOf(id) !== place); }"""
    )
    assert twice == []


def test_an_answer_is_said_once_and_whole(chat: Chat) -> None:
    chat.page.evaluate(
        """() => { window.said = [];
          new MutationObserver(() => {
            const words = document.getElementById("spoken").textContent;
            if (words) window.said.push(words);
          }).observe(document.getElementById("spoken"), { childList: true }); }"""
    )
    chat.send("Name a river.")
    chat.tab.until("() => window.said.length > 0")
    assert chat.page.evaluate("window.said") == [f"Answer: {chat.contents()[-1][1]}"]
    live = "[aria-live=polite], [aria-live=assertive], [role=alert], [role=log], [role=status]"
    assert chat.page.locator(f"#messages :is({live})").count() == 0


def test_all_of_it_with_a_keyboard(open_tab: Callable[..., Tab], server: Server) -> None:
    chat = Chat(open_tab(server.url))
    page, keys = chat.page, chat.page.keyboard
    focused = "document.activeElement.id"

    def tab_to(name: str, key: str = "Tab") -> None:
        for _ in range(60):
            keys.press(key)
            label = "document.activeElement.getAttribute('aria-label')"
            words = f"{label} ?? document.activeElement.textContent.trim()"
            if name in page.evaluate(words):
                outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none"
                return
        raise AssertionError(f"{name} can't be reached")

    chat.tab.until("() => document.activeElement.id === 'message'")
    tab_to("Skip to the message box", "Shift+Tab")
    keys.press("Enter")
    assert page.evaluate(focused) == "message"
    tab_to("Parameters", "Shift+Tab")
    keys.press("Enter")
    page.get_by_role("dialog", name="Parameters").wait_for()
    for _ in range(30):  # The focus stays inside of the dialog.
        keys.press("Tab")
        inside = (
            "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )
        assert page.evaluate(inside)
    page.locator("#field-max_tokens").focus()
    keys.type("300")
    page.locator("#field-temperature").focus()
    keys.type("0")
    keys.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    assert page.evaluate(focused) == "open-settings"
    page.locator("#message").focus()
    keys.type("Count from one")
    keys.press("Shift+Enter")
    keys.type("to five hundred in words.")
    keys.press("Enter")
    chat.grown(5)
    keys.press("Escape")
    chat.ended()
    assert "Stopped" in chat.last().inner_text()
    assert chat.bodies()[0] == "Count from one\nto five hundred in words."
    assert page.evaluate(focused) == "message"
    keys.press("Control+Shift+O")
    page.locator("#empty").wait_for()
    keys.type("Name a river.")
    keys.press("Enter")
    chat.ended()
    page.locator("#conversations a").first.focus()
    keys.press("ArrowDown")
    assert "Count from one" in page.evaluate("document.activeElement.textContent")
    keys.press("Enter")
    page.locator(".message .body", has_text="Count from one").wait_for()
    page.locator("#conversations a").nth(1).focus()
    keys.press("F2")
    keys.type("Counting")
    keys.press("Enter")
    chat.tab.until("() => document.activeElement.textContent.includes('Counting')")
    keys.press("Delete")
    page.get_by_role("button", name="Undo").wait_for()
    tab_to("Undo")
    keys.press("Enter")
    page.get_by_role("link", name="Counting").wait_for()


def test_on_a_phone(open_tab: Callable[..., Tab], server: Server) -> None:
    chat = Chat(open_tab(server.url, **PHONE))
    page = chat.page
    wide = "[document.documentElement, document.body].some((e) => e.scrollWidth > innerWidth)"
    assert not page.evaluate(wide)
    assert page.evaluate("document.getElementById('scroller').scrollTop") == 0
    text = "A" * 300 + "\n\n```\n" + "x" * 400 + "\n```\n\n| " + " | ".join("abcdefghij") + " |\n|"
    text += "---|" * 10 + "\n" + "| wordy cell " * 10 + "|"
    nodes = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    page.get_by_label("File of conversations").set_input_files(
        {"name": "x.json", "mimeType": "application/json", "buffer": export_file(nodes)}
    )
    page.get_by_role("link", name="Imported").wait_for(state="hidden")
    page.get_by_role("button", name="Conversations", exact=True).tap()
    page.get_by_role("link", name="Imported").tap()
    page.locator(".message").nth(1).wait_for()
    page.get_by_role("link", name="Imported").wait_for(state="hidden")
    assert not page.evaluate(wide)
    within = """() => [...document.querySelectorAll(".bar *, .dock *, .message, .foot *")]
      .map((each) => [each, each.getBoundingClientRect()])
      .filter(([each, box]) => box.width && box.right > innerWidth + 1
        && !each.closest("pre, .table, .unseen"))
      .map(([each]) => each.outerHTML.slice(0, 80))"""
    assert page.evaluate(within) == []
    # Nothing that is typed into makes a phone zoom in.
    sizes = """[...document.querySelectorAll("input:not([type=checkbox]):not([hidden]), textarea")]
      .map((each) => parseFloat(getComputedStyle(each).fontSize))"""
    assert min(page.evaluate(sizes)) >= 16
    page.get_by_role("button", name="Parameters").tap()
    assert not page.evaluate(wide)
    page.get_by_role("button", name="Done").tap()
    page.get_by_role("button", name="Conversations", exact=True).tap()
    page.keyboard.press("Escape")
    chat.tab.until("() => document.activeElement.id === 'open-drawer'")


def test_it_scrolls_along_only_from_the_end(open_tab: Callable[..., Tab], server: Server) -> None:
    chat = Chat(open_tab(server.url, reduced_motion="no-preference"))
    chat.endless()
    chat.parameters(temperature="0", max_tokens="4000", repetition_penalty="1")
    chat.page.set_viewport_size({"width": 900, "height": 420})
    chat.send("Count from one to five hundred, each number in words, one a line.", wait=False)
    bottom = """() => { const s = document.getElementById("scroller");
      const left = s.scrollHeight - s.scrollTop - s.clientHeight;
      return s.scrollHeight > s.clientHeight + 150 && left < 30; }"""
    chat.tab.until(bottom)
    chat.page.locator("#scroller").hover()
    chat.page.mouse.wheel(0, -100)
    chat.page.get_by_role("button", name="Latest").wait_for()
    place = at_rest(chat)
    shown = len(chat.bodies()[-1])
    chat.grown(shown + 40)
    assert chat.page.evaluate("document.getElementById('scroller').scrollTop") == place
    chat.page.get_by_role("button", name="Latest").click()
    chat.tab.until(bottom)
    chat.page.keyboard.press("Escape")
    chat.ended()


def at_rest(chat: Chat) -> float:
    """Where the messages stand, once a turn of the wheel has come to its end: Chromium spreads it
    over some frames."""
    return float(
        chat.page.evaluate(
            """async () => {
              const frame = () => new Promise((done) => requestAnimationFrame(done));
              const scroller = document.getElementById("scroller");
              let [place, still] = [scroller.scrollTop, 0];
              while (still < 20) {
                await frame();
                still = scroller.scrollTop === place ? still + 1 : 0;
                place = scroller.scrollTop;
              }
              return place;
            }"""
        )
    )


def test_a_long_conversation_stays_quick(open_tab: Callable[..., Tab], server: Server) -> None:
    """1,000 messages: shown, and an answer's pieces added, without the others being touched."""
    chat = Chat(open_tab(server.url))
    roles = ("user", "assistant")
    nodes = [
        {"role": roles[n % 2], "content": f"**Message** {n}. " + "Some words of it. " * 30}
        for n in range(1000)
    ]
    chat.page.get_by_label("File of conversations").set_input_files(
        {"name": "x.json", "mimeType": "application/json", "buffer": export_file(nodes)}
    )
    chat.page.get_by_role("link", name="Imported").click()
    chat.page.locator(".message").nth(999).wait_for()
    found = chat.page.evaluate(
        """async () => {
          const { Transcript } = await import("/chat/transcript.js");
          const { Conversation } = await import("/chat/conversation.js");
          const { Store } = await import("/chat/store.js");
          const record = await (await Store.open()).load(location.hash.split("/")[1]);
          const conversation = new Conversation(record);
          const transcript = new Transcript({ running: () => false });
          transcript.show(conversation);
          const node = conversation.path().at(-1);
          const last = transcript.list.lastChild;
          const changes = { last: 0, others: 0 };
          const watch = new MutationObserver(() => {});
          const options = { attributes: true, characterData: true, childList: true, subtree: true };
          watch.observe(transcript.list, options);
          let most = 0;
          for (let piece = 0; piece < 200; piece += 1) {
            node.content += ` piece ${piece}`;
            transcript.view(node.id).sync();
            const records = watch.takeRecords();
            most = Math.max(most, records.length);
            for (const { target } of records) {
              changes[last.contains(target) ? "last" : "others"] += 1;
            }
          }
          return { ...changes, most, shown: last.textContent };
        }"""
    )
    assert found["others"] == 0
    assert found["last"] >= 200
    # Nor does a piece cost more, the more of the message there is.
    assert found["most"] <= 10
    assert "piece 0 piece 1 " in found["shown"]
    assert "piece 199" in found["shown"]
