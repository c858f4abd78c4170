"""The live view in a real Chromium, over real systems: what it says is so, and it says when it
isn't any more."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from testing.processes import freeze
from testing.serving import Server, wait_until
from tests.system.page.driving import TIMEOUT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.timeout(600)

STREAMS = 6
SECRET = "the-porcupine-sleeps-at-noon"
GENERATED = "[data-readout=generated] + .lv-sub"
HOSTILE = "<img/src=x/onerror=alert(1)>"


class View:
    """The live view in a tab. complaints: errors and warnings of the console and of scripts."""

    def __init__(self, profile: BrowserContext, url: str) -> None:
        self.complaints: list[str] = []
        profile.set_default_timeout(1000 * TIMEOUT)
        self.page: Page = profile.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(f"pageerror: {error}"))
        self.page.goto(f"{url}/#live")
        self.page.locator(".live").wait_for()

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    @property
    def words(self) -> str:
        return self.text(".lv-words")

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.text_content() or ""

    def number(self, selector: str) -> int:
        return int("".join(filter(str.isdigit, self.text(selector))))

    def until(self, holds: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + TIMEOUT
        while not (found := holds()):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{self.words!r} {self.complaints}")
            self.page.wait_for_timeout(30)
        return found

    def is_state(self, state: str) -> bool:
        return self.page.locator(".live").get_attribute("data-state") == state

    def live(self) -> None:
        """Until there is a snapshot to see, of an engine core that is ready."""
        self.until(lambda: self.is_state("live"))

    @property
    def uptime(self) -> float:
        return float(self.page.locator(".live").get_attribute("data-uptime") or 0)

    def next(self, count: int = 1) -> None:
        """Until so many more snapshots are shown."""
        for _ in range(count):
            before = self.uptime
            self.until(lambda before=before: self.uptime != before)


@pytest.fixture
def open_view(browser: Browser) -> Iterator[Callable[..., View]]:
    """Opens a tab in a profile of its own; what it complains of and no test has excused fails."""
    opened: list[tuple[BrowserContext, View]] = []

    def make(url: str, **context: Any) -> View:
        profile = browser.new_context(**{"viewport": {"width": 1440, "height": 1000}, **context})
        view = View(profile, url)
        opened.append((profile, view))
        return view

    yield make
    complaints = [each for _, view in opened for each in view.complaints]
    for profile, _ in opened:
        profile.close()
    assert complaints == []


@contextmanager
def streaming(server: Server, names: list[str], tokens: int = 4000) -> Iterator[None]:
    """Streams that go on until the block ends, each under its name."""
    stop = threading.Event()

    def stream(name: str) -> None:
        body = {
            "prompt": f"{name} {SECRET} " * 9,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
        with (
            httpx.Client(timeout=None) as client,
            client.stream(
                "POST", f"{server.url}/v1/completions", json=body, headers={"x-request-id": name}
            ) as reply,
        ):
            for _ in reply.iter_bytes():
                if stop.is_set():
                    return

    threads = [threading.Thread(target=stream, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def engine_status(server: Server) -> dict[str, Any]:
    return server.get("/status")[1]["engine"]  # type: ignore[no-any-return]


def later_status(server: Server) -> dict[str, Any]:
    """A status that the engine core told after this was called: it tells one every half second, and
    the next that is seen to be another may have been on its way."""
    for _ in range(2):
        before = engine_status(server)
        wait_until(lambda before=before: engine_status(server) != before, TIMEOUT)
    return engine_status(server)


def first_event(server: Server, skip: int = 0) -> bytes:
    """The data of an event of GET /live."""
    with urllib.request.urlopen(f"{server.url}/live", timeout=30) as reply:
        for line in reply:
            if line.startswith(b"data: "):
                if not skip:
                    return bytes(line[6:])
                skip -= 1
    raise AssertionError("the stream ended")


def test_under_load_it_says_what_status_says(
    server: Server, open_view: Callable[..., View]
) -> None:
    view = open_view(server.url)
    names = [HOSTILE, *(f"stream-{at}" for at in range(1, STREAMS))]
    with streaming(server, names):
        view.live()
        view.until(lambda: view.number("[data-readout=running]") == STREAMS)
        wait_until(lambda: engine_status(server)["running"] == STREAMS, TIMEOUT)
        before = engine_status(server)
        view.until(lambda: view.number(GENERATED) > before["tokens_generated"])
        # One reading, so that all of it is of one snapshot.
        shown = view.page.evaluate(
            """() => ({
              totals: Object.fromEntries([...document.querySelectorAll("[data-total]")]
                .filter((each) => each.dataset.total in {free: 1, cached: 1, used: 1, shared: 1})
                .map((each) => [each.dataset.total, Number(each.textContent.replaceAll(",", ""))])),
              running: document.querySelector("[data-readout=running]").textContent,
              waiting: document.querySelector("[data-readout=waiting]").textContent,
              names: [...document.querySelectorAll(".lv-batch tbody th")]
                .map((each) => each.textContent),
              open: document.querySelector("[data-gateway=open]").textContent,
              generated: document.querySelector("[data-readout=generated] + .lv-sub").textContent,
            })"""
        )
        after = later_status(server)
        check_map(view, server)
        check_reading_by_keys(view)
    assert (shown["running"], shown["waiting"]) == (str(STREAMS), "0")
    assert shown["open"] == str(STREAMS)
    assert sorted(shown["names"]) == sorted(names)
    totals = shown["totals"]
    assert sum(totals.values()) == before["blocks_total"]
    # They only ever take more blocks and tokens: what is shown lies between two asked for.
    assert after["blocks_free"] <= totals["free"] + totals["cached"] <= before["blocks_free"]
    generated = int("".join(filter(str.isdigit, shown["generated"])))
    assert before["tokens_generated"] < generated <= after["tokens_generated"]
    view.until(lambda: view.number("[data-readout=running]") == 0)
    assert SECRET not in view.page.content()
    view.page.locator(".lv-batch .lv-empty").wait_for()


def check_map(view: View, server: Server) -> None:
    """Cells of the map, read by the page's own module, add up to the exact totals; and no prompt is
    in what was sent."""
    data = first_event(server, skip=1)
    assert SECRET.encode() not in data
    blocks = json.loads(data)["engines"][0]["snapshot"]["blocks"]
    cells = view.page.evaluate(
        "async (view) => (await import('/live/blocks.js')).decode(view)", blocks
    )
    for kind in ("free", "cached", "used", "shared"):
        assert sum(cell[kind] for cell in cells) == blocks[kind]
    assert blocks["free"] + blocks["cached"] + blocks["used"] + blocks["shared"] == blocks["total"]
    assert len(cells) == len(base64.b64decode(blocks["map"])) / 3 <= 4096
    assert blocks["used"] + blocks["shared"] > STREAMS


def check_reading_by_keys(view: View) -> None:
    """Both drawings can be read without a mouse, and say what they show in words."""
    page = view.page
    for name, says in (("blocks", "KV blocks: "), ("steps", "last ")):
        canvas = page.locator(f".lv-{name}-plot canvas")
        assert says in (canvas.get_attribute("aria-label") or "")
        reading = page.locator(f".lv-{name}-plot output")
        page.locator(f".lv-{name}-plot").scroll_into_view_if_needed()
        canvas.focus()
        page.keyboard.press("Home")
        first = view.until(reading.text_content)
        page.keyboard.press("ArrowRight")
        view.until(lambda reading=reading, first=first: reading.text_content() not in ("", first))
        reading.wait_for()
        page.keyboard.press("Escape")
        reading.wait_for(state="hidden")
        box = canvas.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] - 8, box["y"] + 20)
        view.until(reading.is_visible)
        page.mouse.move(0, 0)
        view.until(lambda reading=reading: not reading.is_visible())


def test_pause_by_keyboard_and_names_for_everything(
    server: Server, open_view: Callable[..., View]
) -> None:
    view = open_view(server.url)
    view.live()
    page = view.page
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Space")
    view.until(lambda: view.is_state("paused"))
    assert view.words.startswith("Paused")
    stood = view.uptime
    # Nobody watches then: the engine core is asked for nothing.
    time.sleep(1.5)
    assert view.uptime == stood
    resume = page.get_by_role("button", name="Resume")
    assert resume.get_attribute("aria-pressed") == "true"
    page.keyboard.press("Enter")
    view.live()
    view.until(lambda: view.uptime > stood)
    titles = {"Steps", "KV blocks", "Running batch", "Queue", "Tenants", "Gateways"}
    for title in titles:
        assert page.get_by_role("region", name=title, exact=True).count() == 1
    nameless = page.evaluate(
        """() => [...document.querySelectorAll(".live table, .live canvas, .live button")]
          .filter((each) => !(each.caption ?? each).textContent.trim()
            && !each.getAttribute("aria-label")).map((each) => each.outerHTML)"""
    )
    assert nameless == []
    unscoped = page.locator(".live th:not([scope])").count()
    assert unscoped == 0
    assert page.locator(".live [role=status]").count() == 1


def test_on_a_phone_in_the_dark_and_without_motion(
    server: Server, open_view: Callable[..., View]
) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
    view = open_view(server.url, color_scheme="dark", reduced_motion="reduce", **phone)
    view.live()
    style = view.page.evaluate(
        """() => ({
          wide: Math.max(document.documentElement.scrollWidth,
                         document.querySelector(".live").scrollWidth),
          animation: getComputedStyle(document.querySelector(".lv-lamp")).animationName,
          panel: getComputedStyle(document.querySelector(".lv-panel")).backgroundColor,
        })"""
    )
    assert style["wide"] <= 360
    assert style["animation"] == "none"
    red, green, blue = (int(part) for part in style["panel"][4:-1].split(","))
    assert max(red, green, blue) < 80


def test_no_label_of_an_axis_is_cut_off(
    browser: Browser, server: Server, open_view: Callable[..., View]
) -> None:
    """On a phone, with steps of every length: what is written stands inside of the drawing."""
    phone = {"viewport": {"width": 360, "height": 640}, "is_mobile": True}
    view = open_view(server.url, **phone)
    cut = view.page.evaluate(
        """async () => {
          const { stepsPanel } = await import("/live/steps.js");
          const written = CanvasRenderingContext2D.prototype.fillText;
          const cut = [];
          let count = 0;
          CanvasRenderingContext2D.prototype.fillText = function (words, x, y) {
            const box = this.measureText(words);
            count += 1;
            const left = x - (this.textAlign === "right" ? box.width : 0);
            const top = y - box.actualBoundingBoxAscent;
            if (left < 0 || top < -0.5) cut.push([words, left, top]);
            return written.call(this, words, x, y);
          };
          for (const seconds of [0.00001, 0.0123, 0.5, 8.2, 75, 9000, 400000]) {
            for (const tokens of [1, 512, 65536, 1048576]) {
              const panel = stepsPanel();
              document.querySelector(".lv-panels").append(panel.node);
              panel.update({ steps: { rows: [[1, seconds, seconds / 2, tokens, 1, 1]] } });
              panel.redraw();
              panel.stop();
              panel.node.remove();
            }
          }
          return [count, cut];
        }"""
    )
    assert cut[0] >= 5 * 28
    assert cut[1] == []


def test_of_several_engines_one_is_chosen(server: Server, open_view: Callable[..., View]) -> None:
    """What a gateway of two engines would send, made of what this one sends."""
    state = json.loads(first_event(server, skip=1))
    one = state["engines"][0]
    busy = {**one["snapshot"], "batch": {**one["snapshot"]["batch"], "running": 7}, "boot": "b2"}
    gone = {"connected": False, "snapshot": None, "reason": "it was killed"}
    state["engines"] = [
        {**one, "engine": "tcp://a:1"},
        {**one, "engine": "tcp://b:1", "snapshot": busy},
        {**one, "engine": "tcp://c:1", **gone},
    ]
    event = f"event: snapshot\ndata: {json.dumps(state)}\n\n"

    view = open_view(server.url)
    view.live()
    view.page.get_by_role("combobox", name="Engine", exact=True).wait_for(state="hidden")
    view.page.route(
        "**/live", lambda route: route.fulfill(body=event, content_type="text/event-stream")
    )
    view.page.get_by_role("button", name="Pause").click()
    view.page.get_by_role("button", name="Resume").click()
    choice = view.page.get_by_role("combobox", name="Engine", exact=True)
    choice.wait_for()
    view.until(lambda: view.number("[data-readout=running]") == 0)
    choice.select_option("tcp://b:1")
    view.until(lambda: view.number("[data-readout=running]") == 7)
    # It stays chosen when more comes.
    view.until(lambda: view.page.locator(".live").get_attribute("data-boot") == "b2")
    assert choice.input_value() == "tcp://b:1"
    view.page.unroute_all()


@contextmanager
def held(supervisor: int) -> Iterator[None]:
    """Meanwhile, it starts nothing again: what is gone stays so until somebody has seen it."""
    freeze(supervisor)
    try:
        yield
    finally:
        os.kill(supervisor, signal.SIGCONT)


def test_it_says_when_engine_or_gateway_is_gone_and_comes_back(
    start_server: Callable[..., Server], tiny_model: str, open_view: Callable[..., View]
) -> None:
    server = start_server(tiny_model)
    view = open_view(server.url)
    view.live()
    first = view.page.locator(".live").get_attribute("data-boot")
    with held(server.process.pid):
        os.kill(server.child("engine"), signal.SIGKILL)
        view.until(lambda: view.is_state("gone") and "engine core is gone" in view.words)
    assert view.page.locator(".lv-panels").is_visible(), "the last of it stays, faded"
    view.until(lambda: view.is_state("live"))
    assert view.page.locator(".live").get_attribute("data-boot") != first
    with held(server.process.pid):
        os.kill(server.child("gateway 0"), signal.SIGKILL)
        view.until(lambda: view.is_state("gone") and "gateway" in view.words)
    view.until(lambda: view.is_state("live"))
    # The connection that was cut, and those that nobody took meanwhile.
    view.complaints[:] = [each for each in view.complaints if "net::ERR_" not in each]


def test_without_an_admins_key_it_says_so(
    start_server: Callable[..., Server],
    tiny_model: str,
    tmp_path: Path,
    open_view: Callable[..., View],
) -> None:
    keys = tmp_path / "keys.json"
    entries = [
        {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), "admin": admin}
        for name, admin in (("sk-user", False), ("sk-ops", True))
    ]
    keys.write_text(json.dumps(entries))
    keys.chmod(0o600)
    server = start_server(tiny_model, "--api-keys", str(keys))
    view = open_view(server.url)
    view.until(lambda: view.is_state("gone") and "admin's API key" in view.words)
    view.page.get_by_role("dialog").wait_for()  # The page asks for a key by itself.
    give_key(view, "sk-user")
    view.until(lambda: any("403" in each for each in view.complaints))
    view.until(lambda: "admin's API key" in view.words)
    view.page.get_by_role("button", name="API key").click()
    give_key(view, "sk-ops")
    view.live()
    # The browser's own words for what was refused.
    view.complaints[:] = [e for e in view.complaints if "401" not in e and "403" not in e]


def give_key(view: View, key: str) -> None:
    """Gives the key in the page's own dialog, which is open."""
    view.page.get_by_label("Key", exact=True).fill(key)
    view.page.get_by_role("button", name="Save").click()
