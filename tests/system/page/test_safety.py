"""What a message, an answer or a file says is text: nothing of it runs, loads or leads astray."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from testing.serving import PATIENCE, Server
from tests.system.page.driving import Chat, Tab, export_file

pytestmark = pytest.mark.timeout(600)

HOSTILE = [
    "<img src=x onerror=\"window.hacked=1\">",
    "<script>window.hacked=1</script>",
    "<svg onload=window.hacked=1>",
    "[press](javascript:window.hacked=1)",
    "[press](JaVa\tScript:window.hacked=1) <javascript:window.hacked=1>",
    "![x](https://evil.example/x.png) ![x](data:text/html,<script>window.hacked=1</script>)",
    "[x](https://evil.example/\"onmouseover=\"window.hacked=1)",
    "```\"><img src=x onerror=window.hacked=1>\n</code><script>window.hacked=1</script>\n```",
    "| <img src=x onerror=window.hacked=1> |\n|---|\n| <iframe src=javascript:window.hacked=1> |",
    "<style>body{display:none}</style><base href=https://evil.example/><meta http-equiv=refresh>",
    "# <a href=javascript:window.hacked=1>x</a>\n> <form action=https://evil.example><input>",
    r"$\href{javascript:window.hacked=1}{x}$ \(\url{javascript:window.hacked=1}\) $\unknown$",
    r"$$\includegraphics{https://evil.example/x.png}$$",
    r"\(\htmlData{x=1}{y} \text{<img src=x onerror=window.hacked=1>}\) \(\pmb{a}\)",
    r"\(\fcolorbox{red}{blue}{b}\)",
    "```html\n<img src=x onerror=window.hacked=1><script>window.hacked=1</script>\n```",
    "- [x] <input type=checkbox onclick=window.hacked=1>",
    "\u202eright to left\u0000\u2028\ud83c",
]  # fmt: skip
TEXT = "\n\n".join(HOSTILE)


def clean(tab: Tab) -> None:
    """Nothing ran, and of a hostile text no element was made."""
    page = tab.page
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None
    foreign = "script:not([src]), iframe, base, form[action], style, [onerror], [onload]"
    assert page.locator(f":is({foreign})").count() == 0
    assert page.locator(".message :is(img, svg:not(.icon), input, meta)").count() == 0
    for link in page.locator(".message a").all():
        address = link.get_attribute("href") or ""
        assert address.startswith(("https://", "http://", "mailto:"))
        assert "noopener" in (link.get_attribute("rel") or "")
    page.locator("body").wait_for()


def watched(tab: Tab) -> list[str]:
    """The addresses that the page asks for from now on."""
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    return asked


def test_hostile_messages_and_titles_run_nothing(chat: Chat, server: Server) -> None:
    asked = watched(chat.tab)
    chat.send(TEXT)
    clean(chat.tab)
    assert chat.bodies()[0].split("\n")[0] == HOSTILE[0]
    # The list's title, a notice, the document's title: the message's first words.
    row = chat.page.locator("#conversations li").first
    row.hover()
    row.get_by_role("button", name="Delete").click()
    assert HOSTILE[0][:20] in chat.page.locator(".notice").inner_text()
    clean(chat.tab)
    assert all(each.startswith((server.url, "blob:")) for each in asked), asked


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_hostile_file_runs_nothing(
    open_tab: Callable[..., Tab], server: Server, role: str
) -> None:
    chat = Chat(open_tab(server.url))
    asked = watched(chat.tab)
    calls = [{"id": TEXT, "function": {"name": TEXT, "arguments": TEXT}}]
    extra = {"reasoning": TEXT, "calls": calls, "problem": {"message": TEXT}, "finish": TEXT}
    nodes = [{"role": role, "content": text, **extra} for text in (*HOSTILE, TEXT)]
    chat.page.get_by_label("File of conversations").set_input_files(
        {
            "name": "x.json",
            "mimeType": "application/json",
            "buffer": export_file(nodes, title=HOSTILE[0]),
        }
    )
    chat.page.locator("#conversations li a").first.click()
    chat.page.locator(".message").nth(len(HOSTILE)).wait_for()
    clean(chat.tab)
    for summary in chat.page.locator(".message summary").all():
        summary.click()
    clean(chat.tab)
    assert all(each.startswith(server.url) for each in asked), asked
    # All of it can be read.
    if role == "user":
        assert chat.page.locator(".message .body").first.text_content() == HOSTILE[0]


def test_a_prototype_cannot_be_reached_by_a_file(
    open_tab: Callable[..., Tab], server: Server
) -> None:
    chat = Chat(open_tab(server.url))
    file = json.loads(export_file([{"role": "user", "content": "x"}]))
    text = json.dumps(file).replace(
        '"chosen": {}', '"chosen": {"__proto__": "n0", "a": "toString"}'
    )
    text = text.replace('"settings": {}', '"settings": {"__proto__": {"hacked": 1}, "seed": "1"}')
    chat.page.get_by_label("File of conversations").set_input_files(
        {"name": "x.json", "mimeType": "application/json", "buffer": text.encode()}
    )
    chat.page.locator(".notice", has_text="Imported 1 conversation").wait_for()
    assert chat.page.evaluate("[({}).hacked, ({}).n0, Object.prototype.seed]") == [None] * 3
    assert chat.kept()[0]["settings"] == {"seed": "1"}


def test_the_policy_holds_in_the_browser(open_tab: Callable[..., Tab], server: Server) -> None:
    """What slipped through the page's own care would still not run."""
    tab = open_tab(server.url)
    blocked = tab.page.evaluate(
        """async () => {
          const seen = [];
          const blocked = (event) => seen.push(event.effectiveDirective);
          addEventListener("securitypolicyviolation", blocked);
          const make = (tag) => document.createElement(tag);
          const add = (tag, fields) => document.body.append(Object.assign(make(tag), fields));
          add("script", { textContent: "window.hacked = 1" });
          add("div", { innerHTML: "<img src=x onerror='window.hacked=1'>" });
          add("img", { src: "http://127.0.0.1:9/x.png" });
          add("style", { textContent: "body { color: red }" });
          add("iframe", { src: "/docs" });
          await fetch("http://127.0.0.1:9/").catch(() => {});
          const late = performance.now() + 30_000;
          while (new Set(seen).size < 6 && performance.now() < late) {
            await new Promise((resolve) => setTimeout(resolve, 300));
          }
          return [window.hacked ?? null, [...new Set(seen)].sort()];
        }"""
    )
    directives = "connect-src frame-src img-src script-src-attr script-src-elem style-src-elem"
    assert blocked == [None, directives.split()]
    tab.complaints.clear()  # Chromium's words for what was blocked.


def test_the_key_goes_nowhere_else(open_tab: Callable[..., Tab], server: Server) -> None:
    """It is in the header of requests to this server, and in no address."""
    chat = Chat(open_tab(server.url))
    asked = watched(chat.tab)
    chat.page.get_by_role("button", name="API key").click()
    chat.page.get_by_label("Key", exact=True).fill("sk-secret")
    chat.page.get_by_role("button", name="Save").click()
    chat.parameters(max_tokens="4")
    with chat.page.expect_request("**/v1/chat/completions") as request:
        chat.send("Hi")
    assert request.value.headers["authorization"] == "Bearer sk-secret"
    assert all("sk-secret" not in url for url in asked)
    assert httpx.get(server.url, timeout=PATIENCE).headers["referrer-policy"] == "no-referrer"
    kept = "[JSON.stringify(localStorage), JSON.stringify(sessionStorage)]"
    assert ["sk-secret" in each for each in chat.page.evaluate(kept)] == [False, True]
    assert "sk-secret" not in json.dumps(chat.kept())
