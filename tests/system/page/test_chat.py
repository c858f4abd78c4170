"""The chat in a real Chromium, on a real system: what is shown and kept is what the API says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.serving import Server, wait_until
from tests.system.page.driving import Chat, Tab, answered, assistant, export_file, user

pytestmark = pytest.mark.timeout(600)

FRANCE = "What is the capital of France?"
RIVER = "Name a river."
LONG = "Count from one to five hundred, each number in words."


def open_requests(server: Server) -> int:
    status = httpx.get(f"{server.url}/status", timeout=60).json()
    return int(status["gateway"]["open_requests"]) + int(status["engine"]["running"])


def test_an_answer_is_the_apis_and_is_accounted_for(chat: Chat, server: Server) -> None:
    # Asked first here: an answer that was given before may be drafted, and come as one piece.
    chat.send(FRANCE)
    expected = answered(server.url, [user(FRANCE)])
    assert len(expected) > 20
    assert chat.contents() == [("user", FRANCE), ("assistant", expected)]
    assert chat.bodies() == [FRANCE, expected]
    account = chat.last().locator(".account")
    assert "tokens/s" in account.inner_text()
    account.locator("summary").click()
    assert "Server: prepare" in account.inner_text() or "Server: compute" in account.inner_text()
    follow_up = answered(server.url, [user(FRANCE), assistant(expected), user(RIVER)])
    chat.send(RIVER)
    assert chat.contents()[2:] == [("user", RIVER), ("assistant", follow_up)]
    chat.page.locator("#used", has_text="of 8,192 tokens").wait_for()
    assert chat.page.locator("#model").inner_text() == server.model


def test_stop_ends_the_request_and_keeps_what_came(chat: Chat, server: Server) -> None:
    chat.endless()
    chat.parameters(max_tokens="4000")
    chat.send(LONG, wait=False)
    chat.grown(20)
    chat.page.get_by_role("button", name="Stop the answer").click()
    chat.ended()
    wait_until(lambda: open_requests(server) == 0, 60)
    shown = chat.bodies()[-1]
    assert len(shown) >= 20
    assert "Stopped" in chat.last().inner_text()
    undisturbed = answered(server.url, [user(LONG)], max_tokens=64)
    stopped = chat.contents()[-1][1]
    common = min(len(stopped), len(undisturbed))
    assert stopped[:common] == undisturbed[:common]
    # The rest is the rest: the same words follow that would have followed.
    chat.parameters(max_tokens="8")
    chat.page.get_by_role("button", name="Continue").click()
    chat.ended()
    longer = chat.contents()[-1][1]
    assert longer.startswith(stopped)
    assert len(longer) > len(stopped)


def test_an_answer_that_runs_does_not_hold_up_the_next_message(chat: Chat, server: Server) -> None:
    chat.endless()
    chat.parameters(max_tokens="4000")
    chat.send(LONG, wait=False)
    chat.grown(20)
    chat.parameters(max_tokens="8")
    chat.box.fill(RIVER)
    # On a phone there is no other way than the button.
    chat.page.get_by_role("button", name="Send", exact=True).locator("visible=true").click()
    chat.tab.until("() => document.querySelectorAll('.message').length === 4")
    chat.ended()
    wait_until(lambda: open_requests(server) == 0, 60)
    (asked, stopped), (again, answer) = (chat.contents()[:2], chat.contents()[2:])
    assert (asked, again) == (("user", LONG), ("user", RIVER))
    assert len(stopped[1]) >= 20
    assert answer[1]
    assert "Stopped" in chat.page.locator(".message.assistant").first.inner_text()


def test_a_chat_adds_what_the_server_says_and_what_is_set_wins(
    open_tab: Callable[..., Tab], server: Server
) -> None:
    tab = open_tab(server.url)
    chat, bodies = Chat(tab), list[dict[str, Any]]()
    tab.page.on(
        "request", lambda each: bodies.append(each.post_data_json) if each.post_data else None
    )
    tab.page.locator("#demonstration").wait_for()
    assert "make serve MODEL=Qwen/Qwen3-4B-GGUF:Q4_K_M" in tab.page.inner_text("#demonstration")
    chat.send(RIVER)
    chat.parameters(max_tokens="3", temperature="0")
    chat.send(RIVER)
    [card] = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"]
    added = card["chat_params"]
    system = {"role": "system", "content": added.pop("system")}
    assert added["max_tokens"] > 3
    first, second = (each for each in bodies if "messages" in each)
    assert {name: first[name] for name in added} == added
    assert first["messages"] == [system, user(RIVER)]
    assert {name: second[name] for name in added} == {**added, "max_tokens": 3}


def test_the_demonstration_model_is_known_by_any_name(
    open_tab: Callable[..., Tab], server: Server
) -> None:
    def renamed(route: Any) -> None:
        found = route.fetch().json()
        found["data"] = [{**found["data"][0], "id": "assistant", "root": "assistant"}]
        route.fulfill(json=found)

    tab = open_tab(server.url)
    tab.page.route("**/v1/models", renamed)
    tab.load(tab.page.reload)
    tab.page.locator("#model", has_text="assistant").wait_for()
    assert tab.page.locator("#demonstration").is_visible()


def test_an_edit_and_another_answer_are_branches(chat: Chat, server: Server) -> None:
    chat.send(FRANCE)
    first = chat.contents()[-1][1]
    question = chat.page.locator(".message.user").first
    question.hover()
    question.get_by_role("button", name="Edit").click()
    chat.page.get_by_label("Your message", exact=True).locator("visible=true").fill(RIVER)
    chat.page.get_by_role("button", name="Send", exact=True).first.click()
    chat.ended()
    assert chat.bodies() == [RIVER, answered(server.url, [user(RIVER)])]
    assert "2 / 2" in chat.page.locator(".message").first.inner_text()
    chat.page.get_by_role("button", name="Previous version").click()
    assert chat.bodies() == [FRANCE, first]
    chat.last().get_by_role("button", name="Regenerate").click()
    chat.ended()
    assert chat.bodies() == [FRANCE, first]  # The likeliest tokens again.
    assert "2 / 2" in chat.last().inner_text()
    assert len(chat.contents()) == 5
    # What is deleted comes back.
    chat.last().get_by_role("button", name="Delete").click()
    assert "2 / 2" not in chat.last().inner_text()
    assert len(chat.bodies()) == 2
    chat.page.get_by_role("button", name="Undo").click()
    assert "2 / 2" in chat.last().inner_text()


def test_conversations_are_kept_named_searched_and_deleted(chat: Chat) -> None:
    chat.send(FRANCE)
    chat.fresh()
    chat.send(RIVER)
    chat.listed(RIVER, FRANCE)
    shown = chat.bodies()
    chat.tab.load(chat.page.reload)
    chat.page.locator(".message").nth(1).wait_for()
    assert chat.bodies() == shown
    chat.listed(RIVER, FRANCE)
    # The parameters are the conversation's own.
    chat.page.get_by_role("button", name="Parameters").click()
    assert chat.page.get_by_label("Longest answer").input_value() == "24"
    chat.page.keyboard.press("Escape")
    row = chat.page.locator("#conversations li").last
    row.hover()
    row.get_by_role("button", name="Rename").click()
    name = chat.page.get_by_label("Name of the conversation")
    name.fill("Capitals")
    name.press("Enter")
    chat.page.get_by_role("link", name="Capitals").wait_for()
    chat.page.get_by_label("Search conversations").fill("capit")
    chat.listed("Capitals")
    chat.page.get_by_role("link", name="Capitals").click()
    chat.page.locator(".message .body", has_text=FRANCE).wait_for()
    row = chat.page.locator("#conversations li").first
    row.hover()
    row.get_by_role("button", name="Delete").click()
    chat.page.locator("#empty").wait_for()
    assert len(chat.kept()) == 1
    chat.page.get_by_role("button", name="Undo").click()
    chat.page.locator(".message .body", has_text=FRANCE).wait_for()
    assert len(chat.kept()) == 2


def test_an_export_is_what_an_import_takes(chat: Chat, tmp_path: Path) -> None:
    chat.send(FRANCE)
    chat.wait_kept()
    with chat.page.expect_download() as download:
        chat.page.get_by_role("button", name="Export all").click()
    file = tmp_path / "all.json"
    download.value.save_as(file)
    (written,) = json.loads(file.read_text())["conversations"]
    before = chat.contents()
    assert [(n["role"], n["content"]) for n in written["nodes"].values()] == before
    chat.page.get_by_label("File of conversations").set_input_files(file)
    chat.page.locator(".notice", has_text="Imported 1 conversation").wait_for()
    one, other = chat.kept()
    assert one["id"] != other["id"]
    assert [n["content"] for n in one["nodes"].values()] == [
        n["content"] for n in other["nodes"].values()
    ]


NO_EXPORTS = [
    (b"{", "not JSON"),
    (b"{}", "format"),
    (b'{"format": "penstock-conversations", "conversations": [1]}', "conversations[0]"),
    (export_file([{"role": "system", "content": "x"}]), "role must be"),
    (export_file([{"role": "user", "content": 7}]), "content must be a text"),
    (export_file([{"id": "__proto__", "role": "user", "content": "x"}]), "no id"),
]


def test_a_file_that_is_no_export_says_why(chat: Chat) -> None:
    for content, words in NO_EXPORTS:
        notice = chat.page.locator(".notice.bad", has_text=words)
        assert notice.count() == 0
        chat.page.get_by_label("File of conversations").set_input_files(
            {"name": "x.json", "mimeType": "application/json", "buffer": content}
        )
        notice.wait_for()
        assert chat.kept() == []


def test_two_tabs_add_to_each_other(
    chat: Chat, open_tab: Callable[..., Tab], server: Server
) -> None:
    chat.send(FRANCE)
    other = Chat(open_tab(chat.page.url, beside=chat.tab))
    other.page.locator(".message").nth(1).wait_for()
    # Both write below the same answer at the same time.
    chat.send(RIVER, wait=False)
    other.send("Name a tree.", wait=False)
    for each in (chat, other):
        each.ended()
        each.wait_kept()
    contents = [content for role, content in chat.contents() if role == "user"]
    assert sorted(contents) == sorted([FRANCE, RIVER, "Name a tree."])
    assert [role for role, _ in chat.contents()].count("assistant") == 3
    # A conversation of the one is in the other's list; its deletion harms nothing else.
    other.fresh()
    other.send("Name a bird.")
    chat.page.get_by_role("link", name="Name a bird.").wait_for()
    assert len(chat.kept()) == 2


def test_an_edit_stays_open_while_another_tab_writes(
    chat: Chat, open_tab: Callable[..., Tab], server: Server
) -> None:
    chat.send(FRANCE)
    other = Chat(open_tab(chat.page.url, beside=chat.tab))
    other.page.locator(".message").nth(1).wait_for()
    other.page.locator(".message.user").hover()
    other.page.locator(".message.user").get_by_role("button", name="Edit").click()
    other.page.locator(".edit textarea").fill("half a thou")
    chat.send(RIVER)
    other.page.locator(".message").nth(3).wait_for()
    assert other.page.locator(".edit textarea").input_value() == "half a thou"


def test_what_is_deleted_in_mid_answer_stays_deleted(chat: Chat, server: Server) -> None:
    chat.endless()
    chat.parameters(max_tokens="4000")
    chat.send(LONG, wait=False)
    chat.grown(20)
    row = chat.page.locator("#conversations li").first
    row.hover()
    row.get_by_role("button", name="Delete").click()
    chat.page.locator("#empty").wait_for()
    undo = chat.page.get_by_role("button", name="Undo")
    undo.hover()  # The notice stays meanwhile.
    wait_until(lambda: open_requests(server) == 0, 60)
    chat.page.wait_for_timeout(2500)  # Longer than what is kept later waits.
    assert chat.kept() == []
    undo.click()
    chat.page.locator(".message").nth(1).wait_for()
    assert len(chat.kept()) == 1


def test_a_schema_is_kept_to_and_a_wrong_one_is_not_sent(chat: Chat) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}}
    schema |= {"required": ["city"], "additionalProperties": False}
    chat.parameters(schema=json.dumps(schema), max_tokens="40")
    chat.send(FRANCE)
    assert json.loads(chat.contents()[-1][1])["city"] in ("Paris", "Rome")
    chat.page.get_by_role("button", name="Parameters").click()
    box = chat.page.get_by_label("JSON schema of the answer")
    box.fill("{")
    assert box.get_attribute("aria-invalid") == "true"
    chat.page.get_by_role("button", name="Done").click()
    chat.page.get_by_role("dialog").wait_for()
    assert chat.page.evaluate("document.activeElement.id") == "field-schema"


def test_a_refused_request_shows_its_error_and_is_sent_again(chat: Chat, server: Server) -> None:
    chat.parameters(max_tokens="100000")
    chat.send(FRANCE)
    problem = chat.page.locator(".problem")
    assert "Error 400" in problem.inner_text()
    assert "8192 tokens" in problem.inner_text()
    chat.tab.excuse("400 (Bad Request)")
    chat.parameters(max_tokens="24")
    problem.get_by_role("button", name="Retry").click()
    chat.ended()
    assert chat.bodies() == [FRANCE, answered(server.url, [user(FRANCE)])]
    assert problem.count() == 0


def test_the_live_view_is_its_own(chat: Chat) -> None:
    chat.page.get_by_role("link", name="Live").click()
    chat.page.locator("#live").wait_for()
    chat.tab.until("() => document.getElementById('live').children.length > 0")
    assert chat.page.locator("#chat").is_hidden()
    chat.page.get_by_role("link", name="Chat").click()
    chat.page.locator("#live").wait_for(state="hidden")
    chat.box.wait_for()
