"""When something is in the way: a key, a limit, a gateway that dies, a storage that is full."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.serving import PATIENCE, Server, wait_until
from tests.gateway import keyring
from tests.system.page.driving import Chat, Tab, user

pytestmark = pytest.mark.timeout(600)

KEY = "sk-page"
FRANCE = "What is the capital of France?"
LONG = "Count from one to five hundred, each number in words."


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A system whose user may have one request open at a time."""
    keys = keyring.write(
        tmp_path_factory.mktemp("keys") / "keys.json",
        keyring.key(KEY, max_concurrent=1),
        keyring.key(keyring.ADMIN, admin=True),
    )
    running = Server("--api-keys", keys)
    try:
        yield running
    finally:
        running.close()


def open_requests(server: Server) -> int:
    headers = keyring.bearer(keyring.ADMIN)
    status = httpx.get(f"{server.url}/status", headers=headers, timeout=60).json()
    return int(status["gateway"]["open_requests"])


def with_key(tab: Tab, remember: bool = False) -> Chat:
    """Gives the key to the dialog that has opened by itself."""
    chat = Chat(tab)
    dialog = chat.page.get_by_role("dialog", name="API key")
    dialog.wait_for()
    chat.page.get_by_label("Key", exact=True).fill(KEY)
    chat.page.get_by_label("Remember it on this device").set_checked(remember)
    chat.page.get_by_role("button", name="Save").click()
    dialog.wait_for(state="hidden")
    chat.page.get_by_text("Context of").wait_for()
    tab.excuse("401 (Unauthorized)")
    return chat


def test_a_key_is_asked_for_and_forgotten_or_remembered(
    open_tab: Callable[..., Tab], guarded: Server
) -> None:
    tab = open_tab(guarded.url)
    chat = with_key(tab)
    chat.parameters(temperature="0", max_tokens="8")
    chat.send(FRANCE)
    assert chat.contents()[-1][1]
    other = open_tab(guarded.url, beside=tab)
    with_key(other, remember=True)
    third = Chat(open_tab(guarded.url, beside=tab))
    third.page.get_by_text("Context of").wait_for()
    # It goes when it is emptied.
    third.page.get_by_role("button", name="API key").click()
    assert third.page.get_by_label("Key", exact=True).input_value() == KEY
    third.page.get_by_label("Key", exact=True).fill("")
    third.page.get_by_role("button", name="Save").click()
    third.page.get_by_text("An API key is needed").wait_for()
    assert third.page.evaluate("localStorage.getItem('penstock.key')") is None
    third.tab.excuse("401 (Unauthorized)")
    third.page.get_by_role("button", name="Cancel").click()
    third.send(FRANCE)
    assert "Error 401" in third.page.locator(".problem").inner_text()
    third.tab.excuse("401 (Unauthorized)")


def test_what_could_not_be_sent_is_there_to_be_sent_again(
    open_tab: Callable[..., Tab], server: Server
) -> None:
    """Where sending fails by an error that nobody foresaw."""
    tab = open_tab(server.url)
    Chat(tab)
    tab.page.evaluate(
        """async () => {
          const { Composer } = await import("/chat/composer.js");
          const nothing = {
            taken: () => [], putBack() {}, settled: async () => {}, isEmpty: true, isBlocked: false,
          };
          window.tried = [];
          // Its button and its box are others than those of the chat on this page.
          for (const id of ["composer", "message"]) {
            const place = document.getElementById(id);
            place.replaceWith(place.cloneNode(true));
          }
          const send = async (text) => {
            window.tried.push(text);
            if (window.tried.length === 1) throw new Error("not foreseen");
            return true;
          };
          new Composer({ send, stop() {}, busy: () => false }, nothing);
        }"""
    )
    box = tab.page.get_by_label("Message", exact=True)
    box.fill("Hello")
    box.press("Enter")
    tab.until("() => document.getElementById('message').value === 'Hello'")
    box.press("Enter")
    tab.until("() => document.getElementById('message').value === ''")
    assert tab.page.evaluate("window.tried") == ["Hello", "Hello"]
    tab.excuse("not foreseen")


def test_a_limit_is_waited_out(open_tab: Callable[..., Tab], guarded: Server) -> None:
    chat = with_key(open_tab(guarded.url))
    chat.parameters(temperature="0", max_tokens="8")
    body = {"messages": [user(LONG)], "max_tokens": 4000, "ignore_eos": True, "stream": True}
    url, headers = f"{guarded.url}/v1/chat/completions", keyring.bearer(KEY)
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as other:
        lines = other.iter_lines()  # Held: the stream ends with it.
        next(lines)
        # The page's clock stands still until its words have been read.
        chat.page.evaluate("() => { const now = Date.now(); Date.now = () => now; }")
        chat.send(FRANCE)
        problem = chat.page.locator(".problem")
        assert "Error 429" in problem.inner_text()
        assert "rate_limit_exceeded" in problem.inner_text()
        chat.tab.excuse("429 (Too Many Requests)")
        retry = problem.get_by_role("button", name="Retry")
        assert "Retry in" in retry.inner_text()
        assert retry.is_disabled()
    wait_until(lambda: open_requests(guarded) == 0, 60)
    chat.page.evaluate("() => { Date.now = () => new Date().getTime(); }")
    retry.click(timeout=120_000)  # When the time is over, by the page's own clock.
    chat.ended()
    assert problem.count() == 0
    assert len(chat.contents()) == 2
    assert chat.contents()[-1][1]


def kill_gateway(server: Server) -> None:
    (gateway,) = [pid for title, pid in server.children().items() if "gateway" in title]
    os.kill(gateway, signal.SIGKILL)


def test_an_answer_outlives_its_gateway(open_tab: Callable[..., Tab], guarded: Server) -> None:
    chat = with_key(open_tab(guarded.url))
    chat.endless()
    chat.parameters(temperature="0", max_tokens="400", repetition_penalty="1")
    asked = requests(chat)
    chat.send(LONG, wait=False)
    chat.grown(40)
    shown = chat.bodies()[-1]
    kill_gateway(guarded)
    chat.ended()
    chat.tab.complaints.clear()
    assert chat.page.locator(".problem").count() == 0
    assert chat.bodies()[-1].startswith(shown)
    body = {**asked[0], "stream": False, "ignore_eos": True}
    del body["stream_options"]
    url, headers = f"{guarded.url}/v1/chat/completions", keyring.bearer(KEY)
    whole = httpx.post(url, json=body, headers=headers, timeout=PATIENCE).json()
    assert chat.contents()[-1][1] == whole["choices"][0]["message"]["content"]


def test_a_server_that_stays_away_costs_no_word(
    open_tab: Callable[..., Tab], guarded: Server
) -> None:
    chat = with_key(open_tab(guarded.url))
    chat.endless()
    chat.parameters(temperature="0", max_tokens="6000", repetition_penalty="1")
    chat.send(LONG, wait=False)
    chat.grown(40)
    shown = chat.bodies()[-1]
    # The page's time flies: it has soon waited long enough.
    chat.page.evaluate(
        "() => { const now = performance.now.bind(performance);"
        " performance.now = () => 100 * now(); }"
    )
    chat.page.route("**/v1/chat/completions", lambda route: route.abort())
    kill_gateway(guarded)
    chat.ended()
    chat.tab.complaints.clear()
    assert chat.bodies()[-1].startswith(shown)
    assert "connection to the server was lost" in chat.page.locator(".problem").inner_text()
    chat.page.unroute("**/v1/chat/completions")
    kept = chat.contents()[-1][1]
    wait_until(guarded.ready, 60)
    chat.tab.load(chat.page.reload)
    chat.page.locator(".problem").wait_for()
    chat.tab.complaints.clear()
    assert chat.contents()[-1][1] == kept
    chat.parameters(max_tokens="8")
    chat.page.get_by_role("button", name="Retry").click()
    chat.ended()
    # Another version beside the one that was cut off.
    assert "2 / 2" in chat.last().inner_text()
    assert [role for role, _ in chat.contents()] == ["user", "assistant", "assistant"]


def test_a_full_storage_is_said_and_loses_nothing(chat: Chat, tmp_path: Path) -> None:
    """The browser's own limit, set to almost nothing."""
    session = chat.tab.profile.new_cdp_session(chat.page)
    origin = chat.page.evaluate("location.origin")
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin, "quotaSize": 1000})
    chat.send(FRANCE)
    notice = chat.page.locator(".notice.bad")
    notice.wait_for()
    assert "not kept" in notice.inner_text()
    shown = chat.bodies()
    assert shown[0] == FRANCE
    assert shown[1]
    with chat.page.expect_download() as download:
        notice.get_by_role("button", name="Export it").click()
    download.value.save_as(tmp_path / "kept.json")
    assert FRANCE in (tmp_path / "kept.json").read_text()
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin})
    chat.send("Name a river.")
    assert [content for role, content in chat.contents() if role == "user"] == [
        FRANCE,
        "Name a river.",
    ]


def test_an_answer_goes_on_after_a_reload(chat: Chat, server: Server) -> None:
    """It goes on as if nothing came between: the same request has the same answer, drawn the
    same."""
    # No seed ends it early.
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 400, "maxItems": 410}
    chat.parameters(temperature="1", max_tokens="6000", schema=json.dumps(numbers))
    asked = requests(chat)
    chat.send(LONG, wait=False)
    chat.grown(40)
    chat.tab.load(chat.page.reload)
    chat.page.locator(".message").nth(1).wait_for()
    chat.page.get_by_role("button", name="Stop the answer").wait_for()
    chat.ended()
    assert asked[0] == asked[1]
    body = {**asked[0], "stream": False}
    del body["stream_options"]
    whole = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE).json()
    assert chat.contents()[-1][1] == whole["choices"][0]["message"]["content"]
    assert "tokens/s" in chat.last().inner_text()


def test_the_rest_of_an_answer_goes_on_after_a_reload_until_it_is_stopped(chat: Chat) -> None:
    asked = requests(chat)
    chat.endless()
    chat.send(LONG)
    begun, shown = chat.contents()[-1][1], chat.bodies()[-1].strip()
    chat.parameters(max_tokens="6000")
    chat.page.get_by_role("button", name="Continue").click()
    chat.grown(len(begun) + 20)
    chat.tab.load(chat.page.reload)
    chat.grown(len(begun) + 60)
    chat.page.get_by_role("button", name="Stop the answer").click()
    chat.ended()
    chat.wait_kept()
    assert asked[1] == asked[2]
    assert asked[2]["messages"][-1] == {"role": "assistant", "content": begun}
    chat.tab.load(chat.page.reload)
    chat.page.locator(".message").nth(1).wait_for()
    assert "Stopped" in chat.last().inner_text()
    assert chat.bodies()[-1].startswith(shown)
    assert len(asked) == 3


def test_an_answer_that_had_not_begun_goes_on_after_a_reload(chat: Chat) -> None:
    """Its request is broken off before the page hears that it is left, as some browsers do."""
    chat.page.evaluate(
        """() => {
          const { fetch } = window;
          window.fetch = async (path, ...rest) => {
            if (!path.endsWith("completions")) return fetch(path, ...rest);
            setTimeout(() => {
              dispatchEvent(new Event("pagehide"));
              window.left = true;
            });
            throw new TypeError("broken off");
          };
        }"""
    )
    asked = requests(chat)
    chat.send(FRANCE, wait=False)
    chat.tab.until("() => window.left")
    assert asked == []
    chat.tab.load(chat.page.reload)
    chat.page.locator(".message").nth(1).wait_for()
    chat.ended()
    assert len(asked) == 1
    assert chat.contents()[-1][1]


def test_a_duplicated_tab_leaves_the_answer_to_its_original(
    chat: Chat, open_tab: Callable[..., Tab]
) -> None:
    chat.endless()
    chat.parameters(max_tokens="6000", repetition_penalty="1")
    chat.send(LONG, wait=False)
    chat.grown(40)
    note = chat.page.evaluate("sessionStorage.getItem('penstock.running')")
    other = Chat(open_tab(chat.page.url, beside=chat.tab))
    has_looked = "() => sessionStorage.getItem('penstock.running') === '{}'"
    other.tab.until(has_looked)
    other.page.evaluate("(note) => sessionStorage.setItem('penstock.running', note)", note)
    asked = requests(other)
    other.tab.load(other.page.reload)
    other.page.locator(".message").nth(1).wait_for()
    other.tab.until(has_looked)
    assert asked == []
    chat.page.get_by_role("button", name="Stop the answer").click()
    chat.ended()


def requests(chat: Chat) -> list[dict[str, Any]]:
    """The bodies of what the page asks for from now on."""
    asked: list[dict[str, Any]] = []

    def heard(request: Any) -> None:
        if request.post_data:
            asked.append(request.post_data_json)

    chat.page.on("request", heard)
    return asked


def test_what_another_tab_left_is_not_gone_on_with(
    chat: Chat, open_tab: Callable[..., Tab], server: Server
) -> None:
    chat.endless()
    chat.parameters(max_tokens="6000", repetition_penalty="1")
    chat.send(LONG, wait=False)
    chat.grown(40)
    address = chat.page.url
    chat.page.close(run_before_unload=False)
    other = Chat(open_tab(address, beside=chat.tab))
    other.page.locator(".message").nth(1).wait_for()
    assert "Not finished" in other.last().inner_text()


def test_another_answer_than_before_the_reload_harms_nothing(chat: Chat) -> None:
    chat.endless()
    chat.parameters(max_tokens="6000", repetition_penalty="1")
    chat.send(LONG, wait=False)
    chat.grown(40)
    shown = chat.bodies()[-1][:40]
    # As another model under the same name would.
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": "Nothing like it"}}]})
    chat.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(
            body=f"data: {event}\n\ndata: [DONE]\n\n", content_type="text/event-stream"
        ),
    )
    chat.tab.load(chat.page.reload)
    chat.page.locator(".problem", has_text="answers differently now").wait_for()
    assert chat.bodies()[-1].startswith(shown)
    assert "Nothing like it" not in chat.contents()[-1][1]
    assert "Cut off" in chat.last().inner_text()


def test_without_a_server_the_page_says_so(chat: Chat) -> None:
    chat.page.route("**/v1/**", lambda route: route.abort())
    chat.send(FRANCE)
    assert "can't be reached" in chat.page.locator(".problem").inner_text()
    chat.page.unroute("**/v1/**")
    chat.page.get_by_role("button", name="Retry").click()
    chat.ended()
    assert chat.contents()[-1][1]
    chat.tab.excuse("ERR_FAILED")
