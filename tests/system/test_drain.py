"""Leaving without a loss: `penstock serve`, one engine core, and gateways one after the other."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.serving import PATIENCE, Server, wait_until

pytestmark = [pytest.mark.timeout(900)]

SMALL = ("--max-model-len", "1024", "--num-kv-blocks", "256")


def body(number: int = 0, tokens: int = 40) -> dict[str, Any]:
    return {
        "prompt": f"Story number {number}:",
        "max_tokens": tokens,
        "temperature": 0.7,
        "seed": number,
        "ignore_eos": True,
        "stream": True,
    }


@dataclass
class Reading:
    """One stream as a client saw it. done: it ended in [DONE]."""

    text: str = ""
    done: bool = False
    chunks: int = field(default=0, compare=False)

    def take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            self.text += "".join(choice["text"] for choice in chunk["choices"])
            self.chunks += 1


class Broken(Exception):
    """What no retry can repair: an answer had begun."""


async def read(
    client: httpx.AsyncClient, number: int = 0, tokens: int = 40, reading: Reading | None = None
) -> Reading:
    """One attempt. Raises httpx.HTTPStatusError for a status that is not 200, and Broken for a
    stream that began and was cut. reading: what to fill, for those who look on."""
    reading = reading or Reading()
    async with client.stream("POST", "/v1/completions", json=body(number, tokens)) as response:
        response.raise_for_status()
        try:
            async for line in response.aiter_lines():
                reading.take(line)
        except httpx.TransportError as error:
            raise Broken(f"cut after {reading.chunks} chunks: {error!r}") from error
    return reading


def open_client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=240)


async def alone(url: str, number: int = 0, tokens: int = 40) -> Reading:
    async with open_client(url) as client:
        return await read(client, number, tokens)


async def interrupted(server: Server, pid: int, tokens: int = 60) -> tuple[Reading, list[Any]]:
    """A stream under which SIGTERM is sent to `pid`; and what other requests were told while it
    went on: (status, retry-after) of a completion, and the statuses of readiness and liveness."""
    told: list[Any] = []
    reading = Reading()
    async with (
        open_client(server.url) as client,
        client.stream("POST", "/v1/completions", json=body(tokens=tokens)) as response,
    ):
        assert response.status_code == 200
        async for line in response.aiter_lines():
            reading.take(line)
            if reading.chunks == 5 and not told:
                told = await told_meanwhile(server, pid)
                assert not reading.done
    return reading, told


async def told_meanwhile(server: Server, pid: int) -> list[Any]:
    """Sends SIGTERM to `pid`, and asks. A long stream keeps it from leaving until all is answered,
    however long that takes; it is dropped then."""
    async with (
        open_client(server.url) as client,
        client.stream("POST", "/v1/completions", json=body(2, 900)) as kept,
    ):
        await anext(kept.aiter_lines())
        os.kill(pid, signal.SIGTERM)
        async with open_client(server.url) as other, asyncio.timeout(PATIENCE):
            while (await other.get("/health/ready")).status_code == 200:
                await asyncio.sleep(0.05)  # The signal takes a while to be heard of.
            refused = await other.post("/v1/completions", json=body(1))
            ready = await other.get("/health/ready")
            live = await other.get("/health/live")
    return [
        (refused.status_code, int(refused.headers.get("retry-after", "0"))),
        ready.status_code,
        live.status_code,
    ]


def test_serve_refuses_new_work_and_finishes_what_runs(start_server: Callable[..., Server]) -> None:
    server = start_server(*SMALL, "--shutdown-timeout", "400")
    undisturbed = asyncio.run(alone(server.url, tokens=60))
    reading, told = asyncio.run(interrupted(server, server.process.pid))
    assert told == [(503, 1), 503, 200]
    assert reading == undisturbed
    assert reading.done
    assert server.process.wait(PATIENCE) == 0
    server.prove_gone()


def test_a_shutdown_takes_no_longer_than_it_may(start_server: Callable[..., Server]) -> None:
    server = start_server(*SMALL, "--shutdown-timeout", "1")

    async def cut() -> float:
        async with (
            open_client(server.url) as client,
            client.stream("POST", "/v1/completions", json=body(tokens=900)) as response,
        ):
            lines = response.aiter_lines()
            await anext(lines)
            begun = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            rest = [line async for line in lines]
            assert rest[-2:] == ["data: [DONE]", ""]
            assert '"shutting_down"' in rest[-4], rest[-4:]
            return time.monotonic() - begun

    # It got its second, and no more: 900 tokens take longer on any machine.
    assert asyncio.run(cut()) > 0.9
    assert server.process.wait(PATIENCE) == 0


def test_an_engine_core_that_is_told_to_leave_finishes_and_comes_back(
    start_server: Callable[..., Server],
) -> None:
    server = start_server(*SMALL, "--shutdown-timeout", "400")
    undisturbed = asyncio.run(alone(server.url, tokens=60))
    engine = server.child("engine")
    reading, told = asyncio.run(interrupted(server, engine))
    assert told == [(503, 1), 503, 200]
    assert reading == undisturbed
    wait_until(lambda: server.children().get("penstock: engine") not in (None, engine))
    wait_until(server.ready)
    assert asyncio.run(alone(server.url, tokens=60)) == undisturbed


@dataclass
class Tally:
    """What the clients of a rolling restart met. finished: by request number."""

    finished: dict[int, Reading] = field(default_factory=dict)
    retries: int = 0
    broken: list[str] = field(default_factory=list)


async def retrying_client(url: str, first: int, tally: Tally, stop: asyncio.Event) -> None:
    """Sends one request after another. Repeats one that was refused, or whose connection was
    refused or cut before the first byte of its answer; anything else is a failure."""
    number = first
    async with open_client(url) as client:
        while not stop.is_set():
            try:
                tally.finished[number] = await read(client, number)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != 503:
                    tally.broken.append(f"{number}: {error}")
                    return
                tally.retries += 1
                await asyncio.sleep(0.05)
            except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
                tally.retries += 1
            except Broken as error:
                tally.broken.append(f"{number}: {error}")
                return
            else:
                number += 1


def test_a_rolling_restart_of_gateways_fails_nobody(start_server: Callable[..., Server]) -> None:
    """`--gateways 2` share the supervisor's socket; SIGUSR2 restarts one after the other."""
    server = start_server(*SMALL, "--gateways", "2", "--shutdown-timeout", "400")
    before = server.children()
    tally = Tally()

    async def run() -> None:
        stop = asyncio.Event()
        clients = [
            asyncio.create_task(retrying_client(server.url, 1000 * i, tally, stop))
            for i in range(6)
        ]
        await asyncio.sleep(0.5)
        server.process.send_signal(signal.SIGUSR2)
        deadline = time.monotonic() + 10 * PATIENCE
        while 'event="gateways restarted"' not in server.stderr or len(tally.finished) < 12:
            if time.monotonic() >= deadline:
                raise TimeoutError(repr(server.stderr[-5000:]))
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        stop.set()
        await asyncio.gather(*clients)

    asyncio.run(run())
    wait_until(lambda: server.children().keys() >= before.keys())
    after = server.children()
    for title, pid in before.items():
        # What gateways are forks of, and their renderers of chat templates, go with them.
        renewed = any(name in title for name in ("gateway", "fork-server", "template"))
        assert (after[title] != pid) == renewed, title
    assert tally.broken == []
    assert len(tally.finished) >= 12
    print(f"{len(tally.finished)} streams, {tally.retries} retries")
    for number, reading in list(tally.finished.items())[::5]:
        assert reading.done
        assert reading == asyncio.run(alone(server.url, number)), number
    assert all(reading.done for reading in tally.finished.values())


FORM = b"\r\n".join(
    (
        b"--b\r\ncontent-disposition: form-data; name=purpose\r\n\r\nbatch",
        b"--b\r\ncontent-disposition: form-data; name=file; filename=f\r\n\r\n{",
    )
)
UNREAD = {"prompt": "x", "max_tokens": 100, "n": 8, "logprobs": 20, "stream": True}
IN_THE_WAY = {
    "half a head": b"GET / HTT",
    "an idle connection": b"GET /health HTTP/1.1\r\nhost: HOST\r\n\r\n",
    "a live view": b"GET /live HTTP/1.1\r\nhost: HOST\r\n\r\n",
    "a body that never ends": b"POST /v1/completions HTTP/1.1\r\nhost: HOST\r\n"
    b"content-type: application/json\r\ncontent-length: 1000000\r\n\r\n ",
    "an upload that never ends": b"POST /v1/files HTTP/1.1\r\nhost: HOST\r\ncontent-length: 1000000"
    b"\r\ncontent-type: multipart/form-data; boundary=b\r\n\r\n" + FORM,
    "a stream that nobody reads": b"POST /v1/completions HTTP/1.1\r\nhost: HOST\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    % (len(json.dumps(UNREAD)), json.dumps(UNREAD).encode()),
}
"""What clients send who read nothing, and go on with a blank now and then."""
ENDLESS = [name for name in IN_THE_WAY if name.endswith("never ends")]


async def stands_in_the_way(host: str, name: str, stop: asyncio.Event) -> None:
    """Again and again, until `stop`."""
    address, _, port = host.partition(":")
    while not stop.is_set():
        try:
            _, writer = await asyncio.open_connection(address, int(port), limit=1)
            writer.write(IN_THE_WAY[name].replace(b"HOST", host.encode()))
            while not stop.is_set():
                await asyncio.sleep(0.05)
                if name in ENDLESS:
                    writer.write(b" ")
                await writer.drain()
                if writer.transport.is_closing():
                    break
            writer.transport.abort()
        except OSError:
            await asyncio.sleep(0.05)


def test_a_rolling_restart_ends_whoever_is_in_the_way(
    start_server: Callable[..., Server], tiny_model: str, tmp_path: Path
) -> None:
    """Gateways take no longer than they may, and other clients' streams are whole."""
    flags = ("--gateways", "2", "--shutdown-timeout", "8", "--data-dir", str(tmp_path / "data"))
    server = start_server(tiny_model, "--num-kv-blocks", "512", *flags)
    expected = {number: asyncio.run(alone(server.url, number)) for number in range(2)}
    host, tally = server.url.partition("//")[2], Tally()

    async def client(number: int, stop: asyncio.Event) -> None:
        async with open_client(server.url) as client:
            while not stop.is_set():
                try:
                    assert await read(client, number) == expected[number]
                    tally.finished[len(tally.finished)] = expected[number]
                except httpx.HTTPStatusError as error:
                    if error.response.status_code != 503:
                        raise
                except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
                    pass  # Before the first byte of its answer.

    async def run() -> None:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for name in IN_THE_WAY:
                for _ in range(3):
                    group.create_task(stands_in_the_way(host, name, stop))
            for number in expected:
                group.create_task(client(number, stop))
            await asyncio.sleep(1)
            before = server.processes()
            server.process.send_signal(signal.SIGUSR2)
            async with asyncio.timeout(2 * PATIENCE):
                while 'event="gateways restarted"' not in server.stderr:
                    await asyncio.sleep(0.1)
            after = server.processes()
            changed = {name for name, pid in after.items() if before[name] != pid}
            assert changed - {"fork-server"} == {"gateway 0", "gateway 1"}
            stop.set()

    asyncio.run(run())
    assert tally.finished
    wait_until(lambda: all(e["running"] == 0 for e in server.get("/status")[1]["engines"]))
