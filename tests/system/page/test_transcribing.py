"""The page where the model writes down what is said: attached sounds, and the microphone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.recordings import wav
from testing.serving import Server
from testing.trained.hearing import FOLDER
from testing.trained.hearing.exam import unheard, word_errors
from testing.trained.hearing.recordings import SpokenText
from tests.system.page.attaching import Shown
from tests.system.page.conftest import chromium, tabs_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hearing() -> Iterator[Server]:
    with Server(str(FOLDER), "--num-kv-blocks", "512") as server:
        yield server


@pytest.fixture(scope="module")
def spoken() -> SpokenText:
    return unheard(1, 2.4, 2)[0]


@pytest.fixture
def chat(hearing: Server, spoken: SpokenText, tmp_path: Path) -> Iterator[Shown]:
    heard = tmp_path / "heard.wav"
    heard.write_bytes(wav(spoken.samples))
    flags = (
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-audio-capture={heard}%noloop",
    )
    with chromium(*flags) as browser, tabs_of(browser) as open_tab:
        yield Shown(open_tab(hearing.url, permissions=["microphone"]))


def test_sounds_become_text(chat: Shown, spoken: SpokenText, tmp_path: Path) -> None:
    page = chat.page
    page.get_by_text("What was said?").wait_for()
    send = page.get_by_role("button", name="Send")
    chat.box.fill("Nothing to hear")
    assert send.is_disabled()
    chat.box.fill("")
    chat.parameters(temperature="0")
    chat.attach("talk.wav", wav(spoken.samples), "audio/wav")
    page.locator("#attached audio").wait_for()
    chat.attach("more.wav", wav(spoken.samples), "audio/wav")
    chat.notice("This message has 1 sound, and the model takes no more in a prompt.")
    # Nobody speaks for two minutes and is told then.
    page.locator(".notice").get_by_role("button").click()
    page.get_by_role("button", name="Record a sound").click()
    chat.notice("This message has 1 sound, and the model takes no more in a prompt.")
    assert page.locator("#record").get_attribute("aria-pressed") == "false"
    send.click()
    chat.ended()
    attached = chat.bodies()[-1]
    assert word_errors(spoken.text, attached) <= 1
    # The next message is by itself: another sound, in the same conversation.
    page.get_by_role("button", name="Record a sound").click()
    seconds = len(spoken.samples) / 16_000
    chat.tab.until(
        "(most) => Number(document.getElementById('record').dataset.seconds) >= most", seconds
    )
    page.get_by_role("button", name="Stop the recording").click()
    page.locator("#attached audio").wait_for()
    send.click()
    chat.ended()
    page.screenshot(path=tmp_path / "transcript.png")
    assert page.locator(".message.assistant").count() == 2
    assert chat.bodies()[-1].strip()
    # Again, the same sound gives the same text.
    first = page.locator(".message.assistant").first
    first.hover()
    first.get_by_role("button", name="Regenerate").click()
    chat.ended()
    assert chat.bodies()[-1] == attached
