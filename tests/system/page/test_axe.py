"""axe-core finds nothing amiss on chat, live view and API page: light, dark, at a desk, on a phone.

axe/axe.min.js is axe-core 4.14.1 as the npm registry has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testing.serving import Server
from tests.system.page.driving import Tab, assistant, export_file, user

pytestmark = pytest.mark.timeout(600)

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
STILL = """Promise.all(document.getAnimations()
  .filter((one) => one.effect.getComputedTiming().iterations !== Infinity)
  .map((one) => one.finished.catch(() => null)))"""
"""Colours that are on their way are nobody's."""
RUN = "axe.run(%s, {resultTypes: ['violations']}).then((found) => JSON.stringify(found.violations))"
PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True}
DESK = {"viewport": {"width": 1280, "height": 860}}

EVERYTHING = r"""# Title
**Bold**, [a link](https://example.org), `code`, \(a+b\), a task:

- [x] done
- [ ] open

$$\sum_{n=1}^{N} \frac{1}{n} + \sum_{n=1}^{N} \frac{1}{n^2} + \sum_{n=1}^{N} \frac{1}{n^3}$$

```python
def f(x: int) -> str:  # a comment
    return "text" + str(x + 1)
```

| a | b |
|---|---|
| 1 | 2 |
"""


def violations(tab: Tab, within: str | None = None) -> list[str]:
    """What axe finds: rule, element, and what is wrong with it.

    within: a selector of what alone is looked at, where the rest has been.
    """
    session = tab.page.context.new_cdp_session(tab.page)
    session.send("Runtime.evaluate", {"expression": STILL, "awaitPromise": True})
    # Not by a script element: the page's policy refuses that.
    session.send("Runtime.evaluate", {"expression": AXE})
    expression = RUN % ("document" if within is None else json.dumps(within))
    answer = session.send(
        "Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True}
    )
    found: list[dict[str, Any]] = json.loads(answer["result"]["value"])
    return [
        f"{rule['id']}: {node['html'][:200]}: {node['failureSummary'][:300]}"
        for rule in found
        for node in rule["nodes"]
    ]


def check(tab: Tab, within: str | None = None) -> None:
    found = violations(tab, within)
    assert not found, "\n".join(found)


def test_axe_finds_what_is_wrong(open_tab: Callable[..., Tab], server: Server) -> None:
    """Else nothing found would mean nothing."""
    tab = open_tab(server.url)
    tab.page.locator("#examples button").first.wait_for()
    tab.page.evaluate("document.getElementById('send').removeAttribute('aria-label')")
    tab.page.evaluate("document.getElementById('empty-note').style.color = 'silver'")
    found = violations(tab)
    assert {each.partition(":")[0] for each in found} == {"button-name", "color-contrast"}


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
class TestEveryPage:
    def test_chat(
        self, open_tab: Callable[..., Tab], server: Server, scheme: str, size: dict[str, Any]
    ) -> None:
        tab = open_tab(server.url, color_scheme=scheme, **size)
        page = tab.page
        page.locator("#examples button").first.wait_for()
        check(tab)
        messages = [user("Show me everything"), assistant(EVERYTHING)]
        page.get_by_label("File of conversations").set_input_files(
            {"name": "x.json", "mimeType": "application/json", "buffer": export_file(messages)}
        )
        if size is PHONE:
            page.get_by_role("button", name="Conversations", exact=True).click()
            check(tab)
        page.locator("#conversations li a").first.click()
        page.locator(".message math").first.wait_for(state="attached")
        page.locator(".message .tok-keyword").first.wait_for(state="attached")
        check(tab)
        page.get_by_role("button", name="Parameters").click()
        check(tab)
        page.get_by_role("button", name="Done").click()
        page.get_by_role("button", name="API key").click()
        check(tab)

    def test_live_view(
        self, open_tab: Callable[..., Tab], server: Server, scheme: str, size: dict[str, Any]
    ) -> None:
        server.complete("One two three", max_tokens=8)
        tab = open_tab(f"{server.url}/#live", color_scheme=scheme, **size)
        tab.page.locator(".live[data-state=live]").wait_for()
        check(tab)

    def test_api_page(
        self, open_tab: Callable[..., Tab], server: Server, scheme: str, size: dict[str, Any]
    ) -> None:
        tab = open_tab(f"{server.url}/docs", color_scheme=scheme, **size)
        page = tab.page
        page.locator(".opblock").first.wait_for()
        check(tab)
        page.locator("#operations-generate-post_v1_completions .opblock-summary-control").click()
        page.get_by_role("button", name="Execute").click()
        page.locator(".live-responses-table .response").first.wait_for()
        check(tab, "#operations-generate-post_v1_completions")
        page.locator(".btn.authorize").first.click()
        modal = page.get_by_role("dialog", name="Available authorizations")
        modal.wait_for()
        check(tab, ".dialog-ux")
        modal.get_by_role("textbox").fill("sk-any")
        modal.get_by_role("button", name="Authorize").click()
        modal.get_by_role("button", name="Logout").wait_for()
        check(tab, ".dialog-ux")
