"""Formulas and coloured code: what becomes of them, and that no text makes them harmful or slow."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from testing.serving import PATIENCE, Server
from tests.system.page.driving import Tab

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def tab(open_tab: Callable[..., Tab], server: Server) -> Tab:
    return open_tab(server.url)


READ = r"""async (texts) => {
  const { MarkdownView } = await import("/chat/render.js");
  const message = document.createElement("li");
  const place = document.createElement("div");
  message.className = "message assistant";
  place.className = "body";
  message.append(place);
  document.getElementById("messages").append(message);
  for (const text of texts) new MarkdownView(place).append(text);
  for (let i = 0; i < 1000 && place.querySelector(".maths > code"); i += 1) {
    await new Promise((resolve) => setTimeout(resolve, 20));
    if (globalThis.katex) break;
  }
  await new Promise((resolve) => setTimeout(resolve));
  return [...place.querySelectorAll(".maths")].map((each) => [
    each.querySelector("annotation")?.textContent ?? null,
    [...each.querySelectorAll("mi, mn, mo")].map((leaf) => leaf.textContent).join(" "),
    each.querySelector("math")?.getAttribute("display") ?? "",
    each.textContent,
  ]);
}"""


def test_formulas_are_mathml(tab: Tab) -> None:
    texts = [
        r"\(a+b\)",
        "$$\n\\frac{1}{2}\n$$",
        r"$\undefined{x}$",
        r"$\href{javascript:alert(1)}{x}$",
    ]
    plain, whole, unknown, link = tab.page.evaluate(READ, texts)
    assert plain[:3] == ["a+b", "a + b", ""]
    assert whole[:3] == [r"\frac{1}{2}", "1 2", "block"]
    # What it can't read is shown as it was written; a link is none.
    assert unknown[0] is None
    assert unknown[3] == r"\undefined{x}"
    assert tab.page.locator(".maths :is(a, [href], [style], img)").count() == 0
    assert "javascript" in link[3]


def test_formulas_cannot_grow_without_end(tab: Tab) -> None:
    """Macros that double, and sizes beyond the page."""
    texts = [
        r"$\def\a{xx}\def\b{\a\a}\def\c{\b\b}\def\d{\c\c\c\c}\d\d\d\d\d\d\d\d\d\d\d\d\d\d\d\d$",
        r"$\def\a{\a\a}\a$",
        r"$\rule{9999em}{9999em}$",
        "$" + "{" * 900 + "x" + "}" * 900 + "$",
    ]
    begun = time.monotonic()
    found = tab.page.evaluate(READ, texts)
    assert time.monotonic() - begun < PATIENCE
    assert len(found) == len(texts)
    assert sum(len(each[3]) for each in found) < 20_000
    wide = "(({ scrollWidth, clientWidth }) => [scrollWidth, clientWidth])(scroller)"
    reached, seen = tab.page.evaluate(wide)
    assert reached <= seen


CODE = 'def f(x):  # why\n    return "a" + 1\n'
COLOURS = r"""async ([language, text]) => {
  const { MarkdownView } = await import("/chat/render.js");
  const place = document.createElement("div");
  document.body.append(place);
  new MarkdownView(place).append("```" + language + "\n" + text + "```\n");
  const code = place.querySelector("pre code");
  for (let i = 0; i < 500 && !code.querySelector("span"); i += 1) {
    await new Promise((resolve) => setTimeout(resolve, 20));
    if (language === "nonsense" && i > 50) break;
  }
  const spans = [...code.querySelectorAll("span")];
  return [code.textContent, spans.map((each) => [each.className, each.textContent])];
}"""


def test_code_has_colours_and_stays_the_same_text(tab: Tab) -> None:
    text, pieces = tab.page.evaluate(COLOURS, ["python", CODE])
    assert text == CODE.rstrip("\n")
    assert pieces[:2] == [["tok-keyword", "def"], ["tok-title", "f"]]
    assert ["tok-comment", "# why"] in pieces
    assert ["tok-string", '"a"'] in pieces
    assert ["tok-literal", "1"] in pieces
    hostile = "<img src=x onerror=alert(1)><script>alert(1)</script>"
    text, pieces = tab.page.evaluate(COLOURS, ["html", hostile + "\n"])
    assert text == hostile
    assert pieces
    assert tab.page.locator("pre :is(img, script)").count() == 0
    assert tab.page.evaluate(COLOURS, ["nonsense", CODE]) == [CODE.rstrip("\n"), []]


def test_a_text_that_takes_long_to_colour_stays_plain(
    open_tab: Callable[..., Tab], server: Server
) -> None:
    tab = open_tab(server.url)
    workers: list[object] = []
    tab.page.on("worker", lambda worker: workers.append(worker))
    tab.page.context.route(
        "**/chat/highlighter.js",
        lambda route: route.fulfill(
            content_type="text/javascript",
            body="addEventListener('message', () => { for (;;); });",
        ),
    )
    text = tab.page.evaluate(
        """async (code) => {
          const { MarkdownView } = await import("/chat/render.js");
          const place = document.createElement("div");
          document.body.append(place);
          place.id = "long";
          for (const each of ["a", "b"]) {
            new MarkdownView(place).append("```python\\n" + each + code + "```\\n");
          }
          return place.textContent;
        }""",
        CODE,
    )
    assert "def f(x)" in text
    # The first is given up, the second has another worker, and the page can be used meanwhile.
    deadline = time.monotonic() + 60
    while len(workers) < 2:
        if time.monotonic() >= deadline:
            raise TimeoutError
        tab.page.wait_for_timeout(50)
    assert tab.page.locator("#long pre span").count() == 0
