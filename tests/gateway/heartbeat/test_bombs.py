"""Pictures, sounds, videos and documents that want much of whoever decodes them: a 400 that says
why, and the event loop, on which others' streams are, goes on."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgspec
import pytest

from penstock.client import ModelText
from penstock.config.settings import MediaSettings
from penstock.media.desk import MediaDesk
from penstock.model.media_facts import KindFacts, MediaFacts
from tests.gateway.fake_engine import MODEL
from tests.gateway.heartbeat import bombs
from tests.gateway.heartbeat.beaten import BeatenGateway, beaten
from tests.gateway.heartbeat.beating import collecting_as_a_gateway, latest
from tests.gateway.media import SeeingEngine
from tests.gateway.transcription.test_held import HearingEngine
from tests.shared.media.videos import VIDEO

pytestmark = pytest.mark.timeout(600)

SECONDS = 1.0
"""Seconds of processor time for an item; by default it is 10."""
TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{{ {'image': '<image>', 'audio': '<|AUDIO|>', 'video': "
    "'<|video_pad|>'}.get(c.type, c.text) }}{% endfor %}{% endif %}{% endfor %}"
)
Files = Callable[[], dict[str, bytes]]


class PerceivingEngine(SeeingEngine):
    """Takes pictures, sounds and videos."""

    def __init__(self) -> None:
        super().__init__(TEMPLATE, kinds=("image", "audio"))
        token = "<|video_pad|>"
        number = self.text.tokenizer.special_tokens[token]
        video = KindFacts(preparation=VIDEO, placeholder=token, token=token, token_id=number)
        media = MediaFacts(kinds={**self.welcome.media.kinds, "video": video})
        self.text = ModelText(self.text.tokenizer, self.text.template, media)
        self.welcome = msgspec.structs.replace(self.welcome, media=media)


class HearingServer(HearingEngine):
    """Transcribes."""

    def __init__(self) -> None:
        super().__init__()
        self.files.append(b"")


@pytest.fixture(scope="module")
def gateways() -> Iterator[dict[str, BeatenGateway]]:
    """Gateways by what their model does."""
    with collecting_as_a_gateway(), ExitStack() as stack:
        found = {}
        for name, engine in (("chat", PerceivingEngine()), ("transcript", HearingServer())):
            gateway = stack.enter_context(beaten(engine))
            desk = MediaDesk(MediaSettings(media_process_seconds=SECONDS))
            stack.callback(desk.close)
            gateway.service.media = desk
            found[name] = gateway
        yield found


def _content(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _asks(*content: object, **more: object) -> bytes:
    turn = {"role": "user", "content": list(content)}
    return json.dumps({"messages": [turn], "max_tokens": 4, **more}).encode()


def in_chat(data: bytes) -> bytes:
    return _asks({"type": "image_url", "image_url": {"url": _content(data, "image/png")}})


def in_response(data: bytes) -> bytes:
    part = {"type": "input_image", "image_url": _content(data, "image/jpeg")}
    return json.dumps({"input": [{"role": "user", "content": [part]}]}).encode()


def in_message(data: bytes) -> bytes:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    return _asks({"type": "image", "source": source})


def in_ollama(data: bytes) -> bytes:
    turn = {"role": "user", "content": "a", "images": [base64.b64encode(data).decode()]}
    return json.dumps({"model": MODEL, "messages": [turn], "stream": False}).encode()


def as_sound(data: bytes) -> bytes:
    sound = {"data": base64.b64encode(data).decode(), "format": "wav"}
    return _asks({"type": "input_audio", "input_audio": sound})


def as_video(data: bytes) -> bytes:
    return _asks({"type": "video_url", "video_url": {"url": _content(data, "video/mp4")}})


def as_file(data: bytes) -> bytes:
    return _asks({"type": "file", "file": {"file_data": _content(data, "application/pdf")}})


def as_input_file(data: bytes) -> bytes:
    part = {"type": "input_file", "file_data": _content(data, "application/pdf")}
    return json.dumps({"input": [{"role": "user", "content": [part]}]}).encode()


def as_document(data: bytes) -> bytes:
    content = base64.b64encode(data).decode()
    source = {"type": "base64", "media_type": "application/pdf", "data": content}
    return _asks({"type": "document", "source": source}, model=MODEL)


BOUNDARY = "7b1d2e"


def as_recording(data: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    return head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()


PICTURES = {
    "/v1/chat/completions": in_chat,
    "/v1/responses": in_response,
    "/v1/messages": in_message,
    "/api/chat": in_ollama,
}
CASES = [
    (path, make, bombs.pictures, share, len(PICTURES))
    for share, (path, make) in enumerate(PICTURES.items())
]
CASES += [
    ("/v1/chat/completions", as_sound, bombs.sounds, 0, 2),
    ("/v1/audio/transcriptions", as_recording, bombs.sounds, 1, 2),
    ("/v1/chat/completions", as_video, bombs.videos, 0, 1),
    ("/v1/chat/completions", as_file, bombs.documents, 0, 3),
    ("/v1/responses", as_input_file, bombs.documents, 1, 3),
    ("/v1/messages", as_document, bombs.documents, 2, 3),
]


def _answer(gateway: BeatenGateway, path: str, body: bytes) -> tuple[int, str]:
    form = "multipart/form-data; boundary=" + BOUNDARY
    kind = form if path.endswith("transcriptions") else "application/json"
    status, answer = gateway.answer(path, body, kind)
    return status, answer.decode()


@pytest.mark.parametrize(("path", "make", "files", "share", "of"), CASES)
def test_it_is_refused_and_the_loop_goes_on(
    gateways: dict[str, BeatenGateway],
    path: str,
    make: Callable[[bytes], bytes],
    files: Files,
    share: int,
    of: int,
) -> None:
    """Each endpoint gets a share of the files."""
    gateway = gateways["transcript" if path.endswith("transcriptions") else "chat"]
    for name in list(files())[share::of]:
        body = make(files()[name])
        (status, said), late = gateway.watched(lambda body=body: _answer(gateway, path, body))  # type: ignore[misc]
        # Where processor time is scarce, the process that decodes may pass for a frozen one.
        frozen = status == 503 and "stood still" in said
        assert frozen or status == 400, (name, said[:500])
        assert frozen or bombs.REFUSALS.search(said), (name, said[:500])
        assert late <= latest(), (name, late)
