"""Media by URL: from allowed domains, at public addresses, within bounds; else from nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.errors import InvalidRequest, TooLarge
from penstock.media.fetch import Fetcher, Unfetchable, is_public
from penstock.media.sources import MediaSource, SourceReader

BODY = b"picture" * 1000
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKS = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"".join(
        b"%x;a=b\r\n%b\r\n" % (len(part), part) for part in (BODY[:5], BODY[5:4000], BODY[4000:])
    )
    + b"0\r\n\r\n"
)


@asynccontextmanager
async def server(
    answer: bytes | Callable[[bytes], bytes],
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """(port, heads of the requests that came)."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            heads.append(head)
            writer.write(answer(head) if callable(answer) else answer)
            await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield running.sockets[0].getsockname()[1], heads
    finally:
        running.close()
        await running.wait_closed()


async def here(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def fetcher(seconds: float = 20.0, **more: object) -> Fetcher:
    """The fetcher of a world in which this machine is a public one."""
    arguments = {"resolve": here, "permitted": lambda _: True, **more}
    return Fetcher(frozenset({"a.example", "b.example"}), seconds, **arguments)  # type: ignore[arg-type]


def room(size: int) -> None: ...


@pytest.mark.parametrize("answer", [LENGTH, CHUNKS, b"HTTP/1.0 200 OK\r\n\r\n" + BODY])
async def test_a_file_comes_whole(answer: bytes) -> None:
    async with server(answer) as (port, heads):
        assert await fetcher().fetch(f"http://a.example:{port}/x/y.png?z=1", room) == BODY
        (head,) = heads
        assert head.startswith(b"GET /x/y.png?z=1 HTTP/1.1\r\n")
        assert b"\r\nHost: a.example:%d\r\n" % port in head
        for name in (b"cookie", b"authorization", b"referer"):
            assert name not in head.lower()


async def test_redirects_are_followed_where_they_may_lead() -> None:
    def answer(head: bytes) -> bytes:
        if head.startswith(b"GET /first"):
            return b"HTTP/1.1 302 Found\r\nLocation: http://b.example:%d/second\r\n\r\n" % port
        return LENGTH

    async with server(answer) as (port, heads):
        assert await fetcher().fetch(f"http://a.example:{port}/first", room) == BODY
        assert b"Host: b.example" in heads[1]


@pytest.mark.parametrize(
    "target",
    ["http://c.example/x", "ftp://a.example/x", "file:///etc/passwd", "http://127.0.0.1/", "//c/x"],
)
async def test_redirects_are_checked_as_the_first_url_is(target: str) -> None:
    answer = b"HTTP/1.1 301 Moved\r\nLocation: %b\r\n\r\n" % target.encode()
    async with server(answer) as (port, heads):
        with pytest.raises(Unfetchable):
            await fetcher().fetch(f"http://a.example:{port}/", room)
        assert len(heads) == 1


async def test_redirects_come_to_an_end() -> None:
    async with server(b"HTTP/1.1 302 Found\r\nLocation: /again\r\n\r\n") as (port, heads):
        with pytest.raises(Unfetchable, match="more than 3 redirects"):
            await fetcher().fetch(f"http://a.example:{port}/", room)
        assert len(heads) == 4


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://c.example/x",
        "http://a.example.c.example/x",
        "http://a.example@c.example/x",
        "http://c.example#@a.example/",
        "http://a.example\\@c.example/",
        "http://user:word@a.example/",
        "http://a.example:99999/",
        "http://[::1/",
        "http://",
        "gopher://a.example/",
        "http://a.example/ x",
        "http://a.example/\r\nHost: c",
        "http://ä.example/",
        "http://a.example/" + "x" * 9000,
        "http:a.example",
    ],
)
async def test_urls_that_arent_allowed_reach_nobody(url: str) -> None:
    dialled: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        dialled.append(host)
        return []

    with pytest.raises(Unfetchable, match=".*" if url else "an empty URL; a data: URI"):
        await fetcher(resolve=resolve).fetch(url, room)
    assert not dialled


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1",
        "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1",
        "fd12:3456::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::",
        "2002:a00:1::", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2001:db8::1", "::127.0.0.1",
        "nonsense", "",
    ],
)  # fmt: skip
def test_private_addresses(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "1.1.1.1"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], []])
async def test_a_name_that_leads_inside_is_never_dialled(addresses: list[str]) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return addresses

    async with server(LENGTH) as (port, heads):
        careful = fetcher(resolve=resolve, permitted=is_public)
        with pytest.raises(Unfetchable, match="not a public address"):
            await careful.fetch(f"http://a.example:{port}/", room)
        assert not heads


async def test_the_address_that_was_checked_is_dialled() -> None:
    """A name server that answers otherwise the second time changes nothing: nobody asks it."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async with server(LENGTH) as (port, _):
        await fetcher(resolve=resolve).fetch(f"http://a.example:{port}/", room)
    assert asked == ["a.example"]


BROKEN = {
    "no http": b"SSH-2.0-OpenSSH\r\n\r\n",
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "a field without a colon": b"HTTP/1.1 200 OK\r\nabc\r\n\r\n",
    "too many fields": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    "a long field": b"HTTP/1.1 200 OK\r\na: " + b"b" * 40_000 + b"\r\n\r\n",
    "a status": b"HTTP/1.1 404 Not Found\r\n\r\n",
    "a redirect to nowhere": b"HTTP/1.1 302 Found\r\n\r\n",
    "cut off": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabc",
    "a length of digits": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\nabc",
    "compressed": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nabc",
    "a chunk of nothing": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a chunk cut off": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
    "another coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\nabc",
}


@pytest.mark.parametrize("case", BROKEN)
async def test_broken_answers_are_told_without_inner_words(case: str) -> None:
    async with server(BROKEN[case]) as (port, _):
        with pytest.raises(Unfetchable, match="can't be fetched") as caught:
            await fetcher().fetch(f"http://a.example:{port}/", room)
        assert "127.0.0.1" not in str(caught.value)


async def test_who_never_answers_is_left() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    running = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = running.sockets[0].getsockname()[1]
    with pytest.raises(Unfetchable, match=r"longer than 0\.1 s"):
        await fetcher(0.1).fetch(f"http://a.example:{port}/", room)
    running.close()
    await running.wait_closed()


@pytest.mark.parametrize("answer", [LENGTH, CHUNKS, b"HTTP/1.1 200 OK\r\n\r\n" + BODY])
async def test_too_large_a_file_is_left_where_it_is(answer: bytes) -> None:
    async with server(answer) as (port, _):
        reader = SourceReader(len(BODY) - 1, None, fetcher())
        source = MediaSource("messages[0].content[0]", url=f"http://a.example:{port}/")
        with pytest.raises(TooLarge, match="--max-media-bytes"):
            await reader.read(source, room)


async def test_files_of_the_allowed_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "in", tmp_path / "inside_out"
    folder.mkdir()
    outside.mkdir()
    (folder / "a b.png").write_bytes(BODY)
    (outside / "secret").write_bytes(b"secret")
    (folder / "link").symlink_to(outside / "secret")
    (folder / "good link").symlink_to(folder / "a b.png")
    reader = SourceReader(1 << 20, folder.resolve(), fetcher())

    async def read(path: object) -> bytes:
        return await reader.read(MediaSource("here", url=f"file://{path}"), room)

    assert await read(f"{folder}/a%20b.png") == BODY
    assert await read(f"localhost{folder}/good%20link") == BODY
    for path in (
        outside / "secret",
        folder / ".." / "inside_out" / "secret",
        f"{folder}/%2e%2e/inside_out/secret",
        folder / "link",
        folder,
        folder / "none",
        "/dev/zero",
        "/proc/self/environ",
        f"other{folder}/a%20b.png",
        "relative",
        f"{folder}/a%00",
    ):
        with pytest.raises(InvalidRequest) as caught:
            await read(path)
        assert "secret" not in str(caught.value)
        assert str(tmp_path) not in str(caught.value)
