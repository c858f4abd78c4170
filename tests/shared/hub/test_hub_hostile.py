"""Hubs that are broken, or want to do harm: a clear error each, in bounded time, memory and disk.

test_hub_pull.py has those that send something else than they list, test_hub_listings.py what they
list.
"""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import close_session

from penstock.errors import ModelNotFound, PenstockError, StartupError
from penstock.hub import http, transfer
from testing.hub_server import HubServer, serving_hub
from tests.gateway.certificates import make_certificate
from tests.shared.hub.hostile_hub import (
    CONTENT,
    FILE,
    LISTING,
    Endless,
    Handler,
    Trickle,
    cache,
    hub,
    impatient,
    left,
    pull,
    says,
    tricked,
)

__all__ = ["cache", "hub", "impatient"]
pytestmark = pytest.mark.timeout(120)

TRICKLES = {
    "a head": (b"HTTP/1.1 200 OK\r\nX-A: ", b"a"),
    "a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 1024000\r\n\r\n{", b" "),
    "a body to its end": (b"HTTP/1.1 200 OK\r\n\r\n{", b" "),
    "a chunk's extension": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;a=", b"a"),
}


@pytest.mark.parametrize("path", [LISTING, FILE])
@pytest.mark.parametrize("kind", TRICKLES)
def test_a_byte_now_and_then_is_no_answer(
    hub: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str, path: str
) -> None:
    monkeypatch.setattr(http, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(http, "PACE_SECONDS", 0.2)
    trickle = Trickle(*TRICKLES[kind])
    tricked(hub, path, trickle)
    with pytest.raises(ModelNotFound, match=r"its answer did not come in 0\.2 s"):
        pull(hub, cache)
    for _ in range(1 if path == LISTING else transfer.RETRIES):
        assert trickle.gone.acquire(timeout=30)
    assert left(cache) < 100_000


def test_a_download_at_a_pace_may_take_any_time(
    hub: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that needs several connections, each of which ends early."""
    monkeypatch.setattr(http, "PACE_SECONDS", 0.5)
    monkeypatch.setattr(http, "PACE_BYTES", 1)
    monkeypatch.setattr(transfer, "PACE_BYTES", 1000)
    hub.repositories["org/m"].cut[FILE] = [100_000] * 6

    def slow(handler: Handler, path: str) -> bool:
        if path.endswith(FILE):
            threading.Event().wait(0.02)
        return False

    hub.trick = slow
    assert pull(hub, cache).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("path", "status", "headers", "reason", "most"),
    [
        (LISTING, 200, {}, "answers with more than 33554432 bytes", 64 << 20),
        (LISTING, 500, {}, "answers 500", 8 << 20),
        (FILE, 404, {"X_Error_Code": "EntryNotFound"}, "doesn't have", 8 << 20),
        (LISTING, 302, {"Location": "/"}, "could not be downloaded|lists no files", 8 << 20),
        (FILE, 200, {}, "more came than the file has", 24 << 20),
    ],
)
def test_a_body_without_end_is_not_read(
    hub: HubServer,
    cache: Path,
    path: str,
    status: int,
    headers: dict[str, str],
    reason: str,
    most: int,
) -> None:
    """What was sent before the connection broke may still be on its way: a few megabytes."""
    endless = Endless(status, **headers)
    tricked(hub, path, endless)
    with pytest.raises(PenstockError, match=reason):
        pull(hub, cache)
    assert endless.sent < most
    assert left(cache) <= len(CONTENT) + 1000


@pytest.mark.parametrize("path", [LISTING, FILE])
def test_what_comes_packed_is_not_unpacked(hub: HubServer, cache: Path, path: str) -> None:
    """50 MB in 50 kB."""
    bomb = gzip.compress(bytes(50_000_000), 9)
    tricked(hub, path, says(200, bomb, Content_Encoding="gzip"))
    with pytest.raises(ModelNotFound, match="sends 'gzip', where contents as they are were asked"):
        pull(hub, cache)
    assert left(cache) < 100_000


@pytest.mark.parametrize("path", [LISTING, FILE])
def test_what_leads_round_in_circles_is_left(hub: HubServer, cache: Path, path: str) -> None:
    tricked(hub, path, lambda handler: says(307, b"", Location=handler.path)(handler))
    with pytest.raises(ModelNotFound, match="leads on more than 10 times"):
        pull(hub, cache)
    assert len(hub.requests) <= 13


@pytest.mark.parametrize("listed", [True, False])
def test_the_token_stays_with_the_hub(hub: HubServer, cache: Path, listed: bool) -> None:
    """Another port is another host, as storage has one."""
    tokens: list[tuple[str, str | None]] = []
    hub.repositories["org/m"].metadata = listed

    def listens(name: str) -> Callable[[Handler, str], bool]:
        def trick(handler: Handler, path: str) -> bool:
            tokens.append((name, handler.headers.get("Authorization")))
            if name == "storage":
                return False
            says(302, b"", Location=f"{storage.url}{handler.path}")(handler)
            return True

        return trick

    with serving_hub(m=hub.repositories["org/m"]) as storage:
        hub.trick, storage.trick = listens("hub"), listens("storage")
        assert pull(hub, cache).read_bytes() == CONTENT
    assert {token for name, token in tokens if name == "hub"} == {"Bearer hf_secret"}
    assert [token for name, token in tokens if name == "storage"] == [None] * (3 if listed else 5)


def test_https_never_leads_on_to_http(
    hub: HubServer, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = make_certificate(tmp_path, "hub")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    close_session()
    with serving_hub(context, m=hub.repositories["org/m"]) as secure:
        assert secure.url.startswith("https:")
        assert pull(secure, cache / "a").read_bytes() == CONTENT
        for path in (LISTING, FILE):
            hub.requests.clear()
            tricked(secure, path, lambda h: says(302, b"", Location=f"{hub.url}{h.path}")(h))
            with pytest.raises(ModelNotFound, match=r"https://127\.0\.0\.1 leads on to http"):
                pull(secure, cache / path[-3:])
            assert not hub.requests
    close_session()


def test_words_of_the_hub_are_shown_in_bounds(hub: HubServer, cache: Path) -> None:
    tricked(hub, LISTING, says(418, b"\x1b[2J" * 100_000, X_Error_Message="a\x1b[2Jb" * 1000))
    with pytest.raises(PenstockError, match="answers 418") as raised:
        pull(hub, cache)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("status", [429, 503])
def test_who_asks_for_a_year_is_left(hub: HubServer, cache: Path, status: int) -> None:
    for path in (LISTING, FILE):
        tricked(hub, path, says(status, b"", Retry_After="31536000"))
        with pytest.raises(ModelNotFound, match=rf"answers {status}; .*says after 3\.1536e\+07 s"):
            pull(hub, cache)
    assert len(hub.sent(FILE)) == 1


def test_who_is_busy_is_asked_again_and_not_for_ever(hub: HubServer, cache: Path) -> None:
    answers = iter([says(503), says(429, b"", Retry_After="0")])

    def busy(handler: Handler) -> None:
        next(answers)(handler)

    tricked(hub, FILE, says(502))
    with pytest.raises(ModelNotFound, match="answers 502; try again later"):
        pull(hub, cache)
    assert len(hub.sent(FILE)) == 2
    hub.requests.clear()
    transfer.RETRIES = 3

    def trick(handler: Handler, path: str) -> bool:
        if not path.endswith(FILE):
            return False
        answer = next(answers, None)
        if answer is not None:
            answer(handler)
        return answer is not None

    hub.trick = trick
    assert pull(hub, cache).read_bytes() == CONTENT
    assert len(hub.sent(FILE)) == 3


def test_a_file_for_the_library_comes_in_a_bounded_time_too(
    hub: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub itself would wait for the year."""
    monkeypatch.setattr(transfer, "MOST_BY_HTTP", 1000)
    monkeypatch.setattr(transfer, "LIBRARY_SECONDS", 0.5)
    hub.trick = lambda handler, path: (
        handler.command == "GET"
        and path.endswith(FILE)
        and not says(429, b"", Retry_After="31536000")(handler)
    )
    with pytest.raises(ModelNotFound, match=f"nothing of {FILE} came in 0.5 s"):
        pull(hub, cache)


@pytest.mark.parametrize("cut", [False, True])
def test_contents_that_change_meanwhile(hub: HubServer, cache: Path, cut: bool) -> None:
    """Where there is no hash, but the ETag of a version: another one's bytes are not put behind
    those that are here."""
    hub.repositories["org/m"].metadata = False
    versions = {b"1": b"1" * 200_000, b"2": b"2" * 200_000}
    served = [b"1", b"1", b"2"] if cut else [b"1", b"2"]
    order = iter(served)

    def answer(handler: Handler) -> None:
        version = next(order)
        content = versions[version]
        begin = int((handler.headers.get("Range") or "bytes=0-")[6:-1])
        head = says(
            206 if begin else 200,
            b"",
            ETag=f'W/"v{version.decode()}"',
            Content_Length=str(len(content) - begin),
            Content_Range=f"bytes {begin}-{len(content) - 1}/{len(content)}",
        )
        head(handler)
        if handler.command == "GET":
            handler.wfile.write(content[begin : 100_000 if cut and begin == 0 else None])

    tricked(hub, FILE, answer)
    with pytest.raises(StartupError, match=r"gguf changed while it was downloaded"):
        pull(hub, cache)
    assert not list(cache.rglob("snapshots/*/*"))
