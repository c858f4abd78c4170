"""Whatever a form is full of, the event loop stands still for no more than 50 ms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import pytest

from penstock.config.settings import GatewayConfig, StorageSettings
from penstock_gateway.app import create_app
from penstock_gateway.files.endpoint import FILE
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.storage.store import Store
from tests import thinning
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.heartbeat.beaten import BeatenGateway, beaten
from tests.gateway.heartbeat.beating import collecting_as_a_gateway, latest
from tests.gateway.heartbeat.bodies import LONG
from tests.gateway.media import recorded
from tests.gateway.transcription.test_held import HearingEngine

pytestmark = pytest.mark.timeout(600)

FORMS: dict[str, Operation] = {
    route.operation.path: route.operation
    for route in create_app(FakeEngineClient(), GatewayConfig()).routes  # type: ignore[arg-type]
    if isinstance(route, OperationRoute) and route.operation.body_type == "multipart/form-data"
}
EXAMPLES = {"/v1/files": {"purpose": "batch"}}
"""Fields of a form that is taken."""
BOUNDARY = "b" * 60
KIND = f"multipart/form-data; boundary={BOUNDARY}"
CASES = 2
"""Cases of a form, without --long."""

Fill = Callable[[int], bytes]


def part(name: str, content: bytes, more: bytes = b"") -> bytes:
    head = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"{_named(name)}\r\n'
    return head.encode() + more + b"\r\n" + content + b"\r\n"


def _named(name: str) -> str:
    return '; filename="f"' if name == FILE else ""


END = f"--{BOUNDARY}--\r\n".encode()

BYTES: dict[str, bytes] = {
    "zeros": b"\0",
    "letters": b"a",
    "lines": b"\r\n",
    "returns": b"\r",
    "beginnings of boundaries": b"\r\n--" + BOUNDARY[:-1].encode(),
    "dashes": b"\r\n--",
    "letters of boundaries": b"b",
    "pictographs": "😀".encode(),
    "halves of characters": b"\xf0\x9f",
}


def _times(unit: bytes, size: int) -> bytes:
    return unit * max(1, size // len(unit))


def cases(operation: Operation) -> Iterator[tuple[str, Fill]]:
    """Whole forms, each full of one thing."""
    given = EXAMPLES.get(operation.path, {})
    others = b"".join(part(name, value.encode()) for name, value in given.items())
    file = part(FILE, recorded(0.25))
    for name, unit in BYTES.items():
        yield f"file of {name}", lambda n, u=unit: others + part(FILE, _times(u, n)) + END  # type: ignore[misc]
        yield f"before, {name}", lambda n, u=unit: _times(u, n) + b"\r\n" + others + file + END  # type: ignore[misc]
        yield f"behind, {name}", lambda n, u=unit: others + file + END + _times(u, n)  # type: ignore[misc]
        yield f"name of {name}", lambda n, u=unit: part(_times(u, n).decode("latin-1"), b"x") + END  # type: ignore[misc]
    sound = recorded(0.25)
    yield "a long sound", lambda n: part(FILE, sound[:44] + _times(bytes(2), n)) + END
    yield "parts", lambda n: _times(part("model", b""), n) + file + END
    yield "headers", lambda n: part("model", b"x", _times(b"x: y\r\n", n)) + file + END
    yield "a header", lambda n: part("model", b"x", b"x: " + _times(b"y", n) + b"\r\n") + END
    for field in msgspec.structs.fields(operation.body):
        name = field.encode_name
        for kind in ("letters", "digits", "pictographs"):
            unit = {"digits": b"9"}.get(kind) or BYTES[kind]
            content = partial(_times, unit)
            yield (
                f"{name} of {kind}",
                lambda n, m=name, c=content: (  # type: ignore[misc]
                    others + file + part(m, c(min(n, 65_536))) + END
                ),
            )


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeatenGateway]:
    folder = str(tmp_path_factory.mktemp("store"))
    store = Store(StorageSettings(data_dir=folder, max_stored_files=100_000), folder)
    engine = HearingEngine()
    engine.files = [b""]
    with collecting_as_a_gateway():
        try:
            with beaten(engine, store) as found:
                yield found
        finally:
            store.close()
            engine.text.close()


def chosen(operation: Operation) -> list[tuple[str, Fill]]:
    found = list(cases(operation))
    if thinning.every:
        return found
    shift = list(FORMS).index(operation.path) / len(FORMS)
    return sorted(found, key=lambda case: (shift + found.index(case) * thinning.GOLDEN) % 1)[:CASES]


@pytest.mark.parametrize("path", FORMS)
def test_a_form_full_of_anything(gateway: BeatenGateway, path: str) -> None:
    late = []
    for name, make in chosen(FORMS[path]):
        for size in (LONG - 4096, LONG // 8):
            body = make(size)
            status, held = gateway.watched(lambda body=body: gateway.post(path, body, KIND))  # type: ignore[misc]
            if held > latest():
                late.append(f"{name}, {len(body)} bytes, {status}: {1000 * held:.0f} ms late")
            if status < 400:
                break
    assert not late, "\n".join(late)
