"""Lists of engine endpoints, and names that stand for several."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.client import fleet as module
from penstock.client.fleet import DnsName, follow, is_named, parse_endpoints, resolve
from penstock.errors import InvalidRequest


def test_a_list() -> None:
    parsed = parse_endpoints("tcp://engine:5570, ipc:///run/a.sock,tcp://[::1]:1,dns://all.of:70")
    assert parsed.fixed == ("tcp://engine:5570", "ipc:///run/a.sock", "tcp://[::1]:1")
    assert parsed.names == (DnsName("all.of", 70),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not an endpoint; allowed: tcp://HOST:PORT, ipc://PATH or dns://NAME:PORT"),
        ("engine:5570", "'engine:5570' is not an endpoint"),
        ("tcp://engine", "with a port of 1 to 65535"),
        ("tcp://engine:0", "with a port of 1 to 65535"),
        ("tcp://engine:65536", "with a port of 1 to 65535"),
        ("dns://a b:1", "'dns://a b:1' is not an endpoint"),
        ("ipc://", "'ipc://' is not an endpoint"),
        ("tcp://a:1,,tcp://b:1", "'' is not an endpoint"),
        ("tcp://a:1,tcp://a:1", "'tcp://a:1' appears twice"),
        (",".join(f"tcp://a:{n + 1}" for n in range(65)), "65 endpoints; at most 64"),
    ],
)
def test_what_is_no_list(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^engine endpoint: ") as raised:
        parse_endpoints(text)
    assert message in str(raised.value)


def test_which_endpoints_must_be_resolved() -> None:
    named = ["tcp://engine:5570", "tcp://engine-0.engine.svc:1"]
    numeric = ["tcp://10.0.0.1:5570", "tcp://[::1]:1", "tcp://[fe80::1%eth0]:1", "ipc:///run/a:1"]
    assert [is_named(each) for each in (*named, *numeric)] == [True] * 2 + [False] * 4


def test_the_system_resolver() -> None:
    found = resolve("localhost", 5570)
    assert "tcp://127.0.0.1:5570" in found or "tcp://[::1]:5570" in found
    assert len(found) == len(set(found))


def test_addresses_come_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*_: object, **__: object) -> list[object]:
        addresses = ["10.0.0.10", "::2", "10.0.0.9", "10.0.0.10"]
        return [(0, 0, 0, "", (address, 1)) for address in addresses]

    monkeypatch.setattr(module.socket, "getaddrinfo", answer)
    assert resolve("any", 7) == ["tcp://10.0.0.9:7", "tcp://10.0.0.10:7", "tcp://[::2]:7"]


@pytest.mark.asyncio
async def test_a_name_is_asked_again_and_a_failure_says_nothing() -> None:
    answers: list[list[str] | OSError | UnicodeError] = [
        ["tcp://a:1"],
        OSError("no such name"),
        UnicodeError("label too long"),
        ["tcp://b:1"],
    ]
    asked, told, threads = [], [], set()

    def resolver(host: str, port: int) -> list[str]:
        asked.append((host, port))
        threads.add(threading.current_thread() is threading.main_thread())
        answer = answers[min(len(asked), len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def found(endpoints: list[str]) -> None:
        told.append(endpoints)

    task = asyncio.create_task(follow(DnsName("name", 1), resolver, found, 0.01))
    async with asyncio.timeout(60):
        while len(told) < 2:
            await asyncio.sleep(0.01)
    task.cancel()
    assert told[:2] == [["tcp://a:1"], ["tcp://b:1"]]
    assert asked[:4] == [("name", 1)] * 4
    assert threads == {False}


@pytest.mark.asyncio
async def test_a_resolver_that_hangs_holds_up_nobody() -> None:
    release = threading.Event()

    def resolver(host: str, port: int) -> list[str]:
        release.wait(600)
        return []

    async def found(endpoints: list[str]) -> None:
        raise AssertionError("nobody waits any more")

    task = asyncio.create_task(follow(DnsName("name", 1), resolver, found, 0.01))
    await asyncio.sleep(0.05)
    task.cancel()
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(task, return_exceptions=True)
    finally:
        release.set()
