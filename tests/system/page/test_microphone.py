"""The page's microphone: what Chromium's pretended device plays is recorded, attached and sent."""

from __future__ import annotations

import base64
import io
import json
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.recordings import RATE, wav
from testing.serving import Server
from tests.system.hearing_models import write_qwen2_audio
from tests.system.page.conftest import chromium, tabs_of
from tests.system.page.driving import Chat

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PITCH = 440


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_qwen2_audio(tmp_path_factory.mktemp("qwen2-audio") / "tiny-qwen2-audio")
    flags = ("--max-model-len", "512", "--num-kv-blocks", "256", "--dtype", "float32")
    with Server(str(folder), *flags) as server:
        yield server


@pytest.fixture
def chat(hearing: Server, tmp_path: Path) -> Iterator[Chat]:
    heard = tmp_path / "heard.wav"
    at = np.arange(3 * RATE) / RATE
    heard.write_bytes(wav((0.5 * np.sin(2 * np.pi * PITCH * at)).astype(np.float32)))
    flags = (
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-audio-capture={heard}",
    )
    with chromium(*flags) as browser, tabs_of(browser) as open_tab:
        yield Chat(open_tab(hearing.url, permissions=["microphone"]))


AS_FIREFOX = """() => {
  const hears = AudioContext.prototype.createMediaStreamSource;
  AudioContext.prototype.createMediaStreamSource = function (stream) {
    if (this.sampleRate === 16000) throw new DOMException("other rate", "NotSupportedError");
    return hears.call(this, stream);
  };
}"""
"""It connects no microphone to a context of another rate than its own."""


def record(chat: Chat) -> None:
    page = chat.page
    page.get_by_role("button", name="Record a sound").click()
    chat.tab.until("() => Number(document.getElementById('record').dataset.seconds) >= 0.8")
    page.get_by_role("button", name="Stop the recording").click()
    page.locator("#attached audio").wait_for()
    assert page.locator("#record").get_attribute("aria-pressed") == "false"


def sounds_of(message: dict[str, Any]) -> list[bytes]:
    urls = [part["audio_url"]["url"] for part in message["content"] if part["type"] == "audio_url"]
    return [base64.b64decode(url.partition(",")[2]) for url in urls]


def check(file: bytes) -> int:
    """Checks that the pitch is in it. Returns samples a second."""
    with wave.open(io.BytesIO(file)) as found:
        assert (found.getnchannels(), found.getsampwidth()) == (1, 2)
        rate = found.getframerate()
        samples = np.frombuffer(found.readframes(found.getnframes()), "<i2")
    assert len(samples) > 0.7 * rate
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    loudest = float(np.fft.rfftfreq(len(samples), 1 / rate)[spectrum.argmax()])
    assert loudest == pytest.approx(PITCH, abs=10)
    return rate


def test_what_is_said_is_sent(chat: Chat) -> None:
    """At the models' rate; at the microphone's own where the browser can't bring it to that."""
    page = chat.page
    bodies: list[Any] = []
    page.on("request", lambda request: bodies.append(request.post_data))
    chat.parameters(temperature="0", max_tokens="4")
    record(chat)
    chat.send("What is it?")
    page.locator(".message .shown audio").wait_for()
    page.evaluate(AS_FIREFOX)
    chat.fresh()
    record(chat)
    chat.send("And now?")
    sent = [json.loads(each) for each in bodies if each and "audio_url" in each]
    first, second = (check(*sounds_of(each["messages"][-1])) for each in sent)
    assert first == RATE
    assert second > RATE


KEEP_LISTENERS = """() => {
  window.listeners = [];
  window.AudioWorkletNode = class extends AudioWorkletNode {
    constructor(...given) {
      super(...given);
      window.listeners.push(this);
    }
  };
}"""

LATE_SAMPLES = "() => window.listeners[0].port.onmessage({ data: new Float32Array(48000) })"


def test_samples_that_come_after_the_end_belong_to_no_recording(chat: Chat) -> None:
    chat.page.evaluate(KEEP_LISTENERS)
    record(chat)
    chat.page.evaluate(LATE_SAMPLES)
    assert chat.page.locator("#record").get_attribute("data-seconds") == ""
