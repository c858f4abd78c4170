"""The page's modules by themselves, inside of Chromium: the stream's parser, Markdown, the tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.page.driving import Tab

pytestmark = pytest.mark.timeout(600)

STREAM = (
    'data: {"a": "Grüße 🌊"}\n\n: a comment\n\nevent: odd\r\ndata: one\r\ndata:two\r\n\r\n'
    "id: 7\rdata: 水\r\rdata\n\ndata:  two blanks \n\nretry: 10\n\ndata: [DONE]\n\ndata: no end"
)
EVENTS = [
    ["message", '{"a": "Grüße 🌊"}'],
    ["odd", "one\ntwo"],
    ["message", "水"],
    ["message", ""],
    ["message", " two blanks "],
    ["message", "[DONE]"],
]


@pytest.fixture
def tab(module_tab: Tab) -> Iterator[Tab]:
    """One tab for all tests: they ask functions of the page's modules, and change nothing of it."""
    yield module_tab
    assert module_tab.complaints == []


def test_events_whatever_the_pieces_are(tab: Tab) -> None:
    found = tab.page.evaluate(
        """async (text) => {
          const { EventParser } = await import("/chat/sse.js");
          const bytes = new TextEncoder().encode(text);
          const read = (...cuts) => {
            const parser = new EventParser();
            return [0, ...cuts].flatMap((from, i) => parser.feed(bytes.slice(from, cuts[i])))
              .map(({ event, data }) => [event, data]);
          };
          const wanted = JSON.stringify(read());
          const wrong = [];
          for (let one = 0; one <= bytes.length; one += 1) {
            for (let two = one; two <= bytes.length; two += 1) {
              if (JSON.stringify(read(one, two)) !== wanted) wrong.push([one, two]);
            }
          }
          const single = read(...bytes.keys());
          return { whole: read(), wrong, single };
        }""",
        STREAM,
    )
    assert found["whole"] == EVENTS
    assert found["wrong"] == []
    assert found["single"] == EVENTS


def test_a_stream_without_bound_is_given_up(tab: Tab) -> None:
    error = tab.page.evaluate(
        """async () => {
          const { EventParser } = await import("/chat/sse.js");
          const parser = new EventParser();
          const piece = new TextEncoder().encode("x".repeat(1 << 20));
          try { for (let i = 0; i < 40; i += 1) parser.feed(piece); } catch (error) {
            return `${error.name}: ${error.message}`;
          }
        }"""
    )
    assert error == "RangeError: an event of the stream is over 16 MiB"


@pytest.mark.parametrize(
    ("stream", "text", "ending"),
    [
        ('data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n', "a", "done"),
        ('data: {"choices":[{"delta":{"content":"a"}}]}\n\n', "a", "ConnectionLost"),
        ('data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"cho', "a", "ConnectionLost"),
        ('data: {"error":{"message":"m","code":"c"}}\n\n', "", "ApiError: m"),
        ("", "", "ConnectionLost"),
    ],
)
def test_how_a_stream_ends(tab: Tab, stream: str, text: str, ending: str) -> None:
    found = tab.page.evaluate(
        """async (text) => {
          const { chunksOf, take } = await import("/chat/stream.js");
          const node = { content: "" };
          try {
            for await (const chunk of chunksOf(new Response(text).body)) take(node, chunk, {}, 0);
            return [node.content, "done"];
          } catch (error) { return [node.content, `${error.name}: ${error.message}`]; }
        }""",
        stream,
    )
    assert found[0] == text
    assert found[1].startswith(ending)


def test_calls_and_reasoning_are_put_together(tab: Tab) -> None:
    deltas: list[dict[str, Any]] = [
        {"reasoning_content": "Let me "},
        {"reasoning_content": "see."},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "g"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
    ]
    node = tab.page.evaluate(
        """async (deltas) => {
          const { take } = await import("/chat/stream.js");
          const node = { content: "" };
          for (const delta of deltas) take(node, { choices: [{ delta }] }, {}, 0);
          take(node, { choices: [{ delta: {}, finish_reason: "tool_calls" }] }, {}, 0);
          take(node, { choices: [], usage: { completion_tokens: 3 } }, {}, 0);
          return node;
        }""",
        deltas,
    )
    assert node["reasoning"] == "Let me see."
    assert [(c["id"], c["function"]) for c in node["calls"]] == [
        ("c1", {"name": "f", "arguments": '{"a": 1}'}),
        ("c2", {"name": "g", "arguments": ""}),
    ]
    assert (node["finish"], node["usage"]) == ("tool_calls", {"completion_tokens": 3})


RENDER = """async (texts) => {
  const { MarkdownView } = await import("/chat/render.js");
  return texts.map((text) => {
    const place = document.createElement("div");
    new MarkdownView(place).append(text);
    for (const each of place.querySelectorAll("button, .code-head")) each.remove();
    for (const each of place.querySelectorAll("*")) {
      for (const name of ["tabindex", "role", "aria-label", "target"]) each.removeAttribute(name);
    }
    return place.innerHTML;
  });
}"""
LINK = 'rel="noopener noreferrer nofollow"'
CASES = {
    "plain": "<p>plain</p>",
    "one\ntwo\n\nthree": "<p>one<br>two</p><p>three</p>",
    "# A *b*\n## C ##\n#no": "<h3>A <em>b</em></h3><h4>C</h4><p>#no</p>",
    "**a** *b* __c__ _d_ ~~e~~": (
        "<p><strong>a</strong> <em>b</em> <strong>c</strong> <em>d</em> <del>e</del></p>"
    ),
    "***a*** **b *c* d**": ("<p><strong><em>a</em></strong> <strong>b <em>c</em> d</strong></p>"),
    "2 * 3 * 4 and snake_case_name and **open": "<p>2 * 3 * 4 and snake_case_name and **open</p>",
    r"\*no\* \\ \x": r"<p>*no* \ \x</p>",
    "`a*b*` ``c`d`` `open": "<p><code>a*b*</code> <code>c`d</code> `open</p>",
    "- a\n- b\n  - c\n    - d\n- e": (
        "<ul><li>a</li><li>b<ul><li>c<ul><li>d</li></ul></li></ul></li><li>e</li></ul>"
    ),
    "1. a\n2. b\n5) c": "<ol><li>a</li><li>b</li><li>c</li></ol>",
    "- a\n\n- b": "<ul><li><p>a</p></li><li><p>b</p></li></ul>",
    "7. a\n\n   more\n\n8. b": ('<ol start="7"><li><p>a</p><p>more</p></li><li><p>b</p></li></ol>'),
    "In\n1986. A year": "<p>In<br>1986. A year</p>",
    "1. a\n   ```py\n   x = 1\n     y\n   ```\n2. b": (
        '<ol><li>a<div class="code"><pre><code>x = 1\n  y</code></pre></div></li><li>b</li></ol>'
    ),
    "```js\nlet a = '<b>';\n\n# no\n```\nafter": (
        "<div class=\"code\"><pre><code>let a = '&lt;b&gt;';\n\n# no</code></pre></div><p>after</p>"
    ),
    "~~~\n```\n~~~": '<div class="code"><pre><code>```</code></pre></div>',
    "```\nopen": '<div class="code"><pre><code>open</code></pre></div>',
    "> a\n> - b\nlazy\n\nc": "<blockquote><p>a</p><ul><li>b<br>lazy</li></ul></blockquote><p>c</p>",
    "a\n\n---\n\n* * *": "<p>a</p><hr><hr>",
    "| a | b |\n|:-:|--:|\n| 1 | **2** |\n| 3 |": (
        '<div class="table"><table><thead><tr><th class="center">a</th><th class="right">b</th>'
        '</tr></thead><tbody><tr><td class="center">1</td><td class="right"><strong>2</strong>'
        '</td></tr><tr><td class="center">3</td><td class="right"></td></tr></tbody></table></div>'
    ),
    "|a|b|\n|-|:-:|": (
        '<div class="table"><table><thead><tr><th>a</th><th class="center">b</th></tr></thead>'
        "<tbody></tbody></table></div>"
    ),
    "a | b\nc": "<p>a | b<br>c</p>",
    "- [x] a\n- [ ] b\n- [y] c\n- [x]d": (
        '<ul><li class="task"><span class="mark done"></span>a</li>'
        '<li class="task"><span class="mark open"></span>b</li><li>[y] c</li><li>[x]d</li></ul>'
    ),
    r"\(a+b\) and $x_1$ and \[c\]": (
        '<p><span class="maths"><code>a+b</code></span> and <span class="maths"><code>x_1</code>'
        '</span> and <div class="maths"><code>c</code></div></p>'
    ),
    "so:\n\\[\na < b\n\\]\nthen\n$$c$$\n$$\nd": (
        '<p>so:</p><div class="maths"><code>a &lt; b</code></div><p>then</p>'
        '<div class="maths"><code>c</code></div><p>$$<br>d</p>'
    ),
    "$5 and $10, US$ 3, 5$ or \\$7$ and $ x $ and $1/$2": (
        "<p>$5 and $10, US$ 3, 5$ or $7$ and $ x $ and $1/$2</p>"
    ),
    r"\(open, $open, \[ open": "<p>(open, $open, [ open</p>",
    "`$a$` **$b$**": (
        '<p><code>$a$</code> <strong><span class="maths"><code>b</code></span></strong></p>'
    ),
    '[x *y*](https://e.org/a_(b) "t")!': (
        f'<p><a href="https://e.org/a_(b)" {LINK}>x <em>y</em></a>!</p>'
    ),
    "see https://e.org/x?a=1&b=2. <https://e.org>": (
        f'<p>see <a href="https://e.org/x?a=1&amp;b=2" {LINK}>https://e.org/x?a=1&amp;b=2</a>. '
        f'<a href="https://e.org/" {LINK}>https://e.org</a></p>'
    ),
    "![a](https://e.org/i.png)": f'<p><a href="https://e.org/i.png" {LINK}>a</a></p>',
    "[a](javascript:alert(1)) [b](data:text/html,x) [c](/etc)": (
        "<p>[a](javascript:alert(1)) [b](data:text/html,x) [c](/etc)</p>"
    ),
    "[a](jAvAsCrIpT:x) [b](vbscript:x) [c](&#106;avascript:x)": (
        "<p>[a](jAvAsCrIpT:x) [b](vbscript:x) [c](&amp;#106;avascript:x)</p>"
    ),
    "<img src=x onerror=alert(1)>": "<p>&lt;img src=x onerror=alert(1)&gt;</p>",
    "&lt;b&gt;": "<p>&amp;lt;b&amp;gt;</p>",
    "": "",
    "\n \n": "",
}


def test_markdown(tab: Tab) -> None:
    found = tab.page.evaluate(RENDER, list(CASES))
    for (text, expected), made in zip(CASES.items(), found, strict=True):
        assert made == expected, text


def test_a_growing_text_looks_like_the_whole_one(tab: Tab) -> None:
    """At every prefix of every case, and of all of them together, in pieces of several sizes."""
    texts = [*CASES, "\n\n".join(CASES), "\n".join(CASES), "\r\n".join(CASES)]
    wrong = tab.page.evaluate(
        """async (texts) => {
          const { MarkdownView } = await import("/chat/render.js");
          const wrong = [];
          for (const text of texts) {
            const whole = document.createElement("div");
            new MarkdownView(whole).append(text);
            for (const size of text.length > 500 ? [1, 7, 97] : [1, 2, 3, 5]) {
              const grown = document.createElement("div");
              const view = new MarkdownView(grown);
              for (let at = 0; at < text.length; at += size) view.append(text.slice(at, at + size));
              if (grown.innerHTML !== whole.innerHTML) wrong.push([text, size, grown.innerHTML]);
            }
          }
          return wrong;
        }""",
        texts,
    )
    assert wrong == []


HOSTILE = [
    "*", "_", "**", "`", "[", "](", "[a](", "![", "<https://", "https://", "https://%", "~~", "\\",
    "*a **b ", "_a*", "> ", "- ", "1. ", "# ", "|-", "| ", "``` ", " ", "\n\n", "\n- ", "a\n> ",
    "**a*", "`` ` ", "[[](", "- - - x", "$", "$a ", "$$", "$1", "\\(", "\\[", "\\[\n", "$$\n",
    "$$a\n", "- [x] ", "$a$ ", "\\(a\\) ",
]  # fmt: skip


def test_hostile_text_takes_no_time(tab: Tab) -> None:
    slow = tab.page.evaluate(
        """async (seeds) => {
          const { MarkdownView } = await import("/chat/render.js");
          const slow = [];
          for (const seed of seeds) {
            const many = (letters) => seed.repeat(letters / seed.length);
            for (const text of [many(60000), `${many(30000)}x\\n|-|`]) {
              const begun = performance.now();
              new MarkdownView(document.createElement("div")).append(text);
              const took = performance.now() - begun;
              if (took > 1500) slow.push([seed, took]);
            }
          }
          return slow;
        }""",
        HOSTILE,
    )
    assert slow == []


def test_what_two_tabs_made_is_put_together(tab: Tab) -> None:
    found = tab.page.evaluate(
        """async () => {
          const { Conversation, merged } = await import("/chat/conversation.js");
          const base = Conversation.fresh();
          const first = base.add("", "user", "one");
          const copy = () => new Conversation(structuredClone(base.record));
          const [left, right] = [copy(), copy()];
          left.add(first.id, "assistant", "left");
          right.add(first.id, "assistant", "right");
          right.rename("Right");
          left.remove(left.record.nodes[first.id]);
          const undone = copy();
          undone.remove(undone.record.nodes[first.id])();
          const both = [merged(left.record, right.record), merged(right.record, left.record)];
          return {
            contents: both.map(({ nodes }) => (
              Object.values(nodes).map((n) => n.content ?? "gone").sort())),
            titles: both.map(({ title }) => title),
            undone: undone.path().map((n) => n.content),
            restored: new Conversation(merged(left.record, undone.record)).children("").length,
          };
        }"""
    )
    assert found["titles"] == ["Right", "Right"]
    assert found["contents"][0] == found["contents"][1]
    assert "right" in found["contents"][0]
    assert found["undone"] == ["one"]
    assert found["restored"] == 1


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("temperature", "0.5", 0.5),
        ("temperature", "2.1", "Temperature must be a number from 0 to 2, not 2.1"),
        ("temperature", " ", None),
        ("max_tokens", "1.5", "Longest answer must be a whole number of at least 1, not 1.5"),
        ("max_tokens", "0", "Longest answer must be a whole number of at least 1, not 0"),
        ("seed", "9007199254740993", "Seed must be a whole number of at least 0"),
        ("min_p", "1.5", "Min p must be a number from 0 to 1, not 1.5"),
        ("presence_penalty", "-2", -2),
        ("stop", "a\n\nb", ["a", "b"]),
        ("tools", "{}", "Tools must be a JSON list"),
        ("schema", "[", "JSON schema of the answer is not JSON"),
    ],
)
def test_parameters(tab: Tab, name: str, text: str, expected: Any) -> None:
    found = tab.page.evaluate(
        """async ([name, text]) => {
          const { FIELDS, valueOf } = await import("/chat/settings.js");
          try { return valueOf(FIELDS.find((field) => field.name === name), text) ?? null; }
          catch (error) { return error.message; }
        }""",
        [name, text],
    )
    if isinstance(expected, str):
        assert found.startswith(expected)
    else:
        assert found == expected
