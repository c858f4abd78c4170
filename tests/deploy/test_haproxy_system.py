"""haproxy before two real gateways, one engine core and a worker that says known words at an even
pace: streams arrive as they are made, and gateways come and go without a failed request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local import free_port, haproxy
from penstock import resumed_events
from testing.serving import PATIENCE, wait_until
from testing.words import text
from tests.deploy.gateway_pair import PATH, STEP, Pair, body, generated, settled
from tests.deploy.programs import certificate, needed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Heard:
    """One stream. times: when each piece came."""

    text: str = ""
    done: bool = False
    times: list[float] = field(default_factory=list)

    def take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            self.text += "".join(choice["text"] for choice in chunk["choices"])
            self.times.append(time.monotonic())

    def moments(self) -> int:
        """So many times was something read that had not been there half a step before."""
        gaps = [b - a for a, b in zip(self.times, self.times[1:], strict=False)]
        return 1 + sum(gap > STEP / 2 for gap in gaps)


def curl(*arguments: str, tokens: int = 30) -> tuple[Heard, str]:
    """The stream of seed 5 as curl gets it, and the HTTP version that it spoke."""
    heard, version = Heard(), ""
    command = [needed("curl"), "-sSN", "-w", "\nversion %{http_version}\n", *arguments]
    command += ["-H", "content-type: application/json", "-d", json.dumps(body(5, tokens))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            heard.take(line.rstrip("\n"))
            if line.startswith("version "):
                version = line.split()[1]
    assert process.returncode == 0
    return heard, version


@pytest.mark.parametrize(
    ("flags", "version"), [(("--http1.1",), "1.1"), (("--http2-prior-knowledge",), "2")]
)
def test_tokens_come_one_by_one(pair: Pair, flags: tuple[str, ...], version: str) -> None:
    heard, spoken = curl(*flags, pair.balancer.url + PATH)
    assert spoken == version
    assert heard.text == text(5, 30)
    assert heard.done
    assert heard.moments() > 15, heard.times


def test_tls_brings_http_2_and_only_what_it_should(pair: Pair, tmp_path: Path) -> None:
    https, port = certificate(tmp_path), free_port()
    settings = {
        "PENSTOCK_TLS_CERT": str(https),
        "PENSTOCK_HTTPS_BIND": f"127.0.0.1:{port}",
        "PENSTOCK_TLS_ONLY": "1",
    }
    (folder := tmp_path / "tls").mkdir()
    with haproxy(pair.addresses, folder, settings=settings) as balancer:
        wait_until(balancer.ready)
        url = f"https://localhost:{port}{PATH}"
        trust = ("--cacert", str(tmp_path / "cert.pem"), "--resolve", f"localhost:{port}:127.0.0.1")
        for flags, version in (((), "2"), (("--http1.1",), "1.1")):
            heard, spoken = curl(*trust, *flags, url)
            assert (spoken, heard.text, heard.done) == (version, text(5, 30), True)
        old = [needed("curl"), "-sS", *trust, "--tls-max", "1.1", url]
        assert subprocess.run(old, capture_output=True, timeout=120).returncode == 35
        with pytest.raises(httpx.ConnectError):
            httpx.get(balancer.url + "/v1/models", timeout=PATIENCE)


def test_a_client_that_leaves_takes_its_request_along(pair: Pair) -> None:
    def running() -> int:
        status = httpx.get(pair.balancer.url + "/status", timeout=PATIENCE).json()
        return int(status["engine"]["running"])

    for flags in ("--http1.1", "--http2-prior-knowledge"):
        for stream in (True, False):
            command = [needed("curl"), "-sSN", flags, pair.balancer.url + PATH, "-d"]
            command += [json.dumps(body(1, 2000, stream=stream))]
            command += ["-H", "content-type: application/json"]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=-3) as process:
                try:
                    wait_until(lambda: running() == 1)
                finally:
                    process.kill()
            wait_until(lambda: running() == 0, message=lambda case=(flags, stream): str(case))


@dataclass
class Tally:
    """finished: streams read to their ends.  failed: what the others met, and after how much.
    cut: so many of these had begun.  open: streams in their middle."""

    finished: int = 0
    open: int = 0
    failed: list[str] = field(default_factory=list)
    cut: int = 0

    @contextlib.asynccontextmanager
    async def middle(self) -> AsyncIterator[None]:
        """Headers come with the first token."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


async def ask_again_and_again(url: str, first: int, tally: Tally, stop: asyncio.Event) -> None:
    """Never repeats anything: that is haproxy's business here. Streams of many lengths, so that
    some are in their middle whenever something happens."""
    seed = first
    async with httpx.AsyncClient(base_url=url, timeout=240) as client:
        while not stop.is_set():
            heard, tokens = Heard(), 10 + 7 * seed % 16
            try:
                async with client.stream("POST", PATH, json=body(seed, tokens)) as response:
                    response.raise_for_status()
                    async with tally.middle():
                        async for line in response.aiter_lines():
                            heard.take(line)
            except httpx.HTTPError as error:
                tally.cut += bool(heard.times)
                tally.failed.append(f"{seed} after {len(heard.times)} pieces: {error!r}")
            else:
                assert heard.text == text(seed, tokens)
                assert heard.done
                tally.finished += 1
            seed += 1


async def under_load(pair: Pair, disturb: Any, clients: int = 16) -> Tally:
    """What the clients met while `disturb()` ran in a thread."""
    tally, stop = Tally(), asyncio.Event()
    tasks = [
        asyncio.create_task(ask_again_and_again(pair.balancer.url, 1003 * i, tally, stop))
        for i in range(clients)
    ]
    # Three in four: some of each gateway.
    while tally.open < 0.75 * clients:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(disturb)
    await asyncio.sleep(1)
    # However busy the machine is; the test's own timeout bounds it.
    while tally.finished <= 2 * clients:
        await asyncio.sleep(0.01)
    stop.set()
    await asyncio.gather(*tasks)
    return tally


def test_gateways_told_to_leave_one_after_the_other_fail_nobody(pair: Pair) -> None:
    def roll() -> None:
        for number in range(2):
            pair.end(number, signal.SIGTERM)
            pair.start(number)
            wait_until(lambda: pair.states() == ["UP", "UP"], message=pair.states)

    tally = asyncio.run(under_load(pair, roll))
    assert tally.failed == []
    assert tally.finished > 32


def test_a_killed_gateway_costs_the_streams_that_had_begun_and_no_more(pair: Pair) -> None:
    seen: list[list[str]] = []

    def kill() -> None:
        pair.end(0, signal.SIGKILL)
        wait_until(lambda: pair.states()[0] == "DOWN", message=pair.states)
        seen.append(pair.states())
        pair.start(0)
        wait_until(lambda: pair.states() == ["UP", "UP"], message=pair.states)

    tally = asyncio.run(under_load(pair, kill))
    assert seen == [["DOWN", "UP"]]
    assert tally.cut == len(tally.failed), tally.failed
    assert 0 < tally.cut <= 16
    assert tally.finished > 32


def resumed(url: str, seed: int, tokens: int, begun: list[int]) -> tuple[str, float]:
    """The stream's text as a client gets it that goes on where it breaks off, and its longest
    silence, in seconds. begun: gets the seed with the first piece."""
    heard, longest, before = "", 0.0, time.monotonic()
    for event in resumed_events(url, body(seed, tokens), path=PATH, patience=PATIENCE):
        now = time.monotonic()
        longest, before = max(longest, now - before), now
        if not heard:
            begun.append(seed)
        heard += "".join(choice["text"] for choice in event["choices"])
    return heard, longest


def test_streams_that_go_on_outlive_every_gateway(
    pair: Pair, request: pytest.FixtureRequest
) -> None:
    """Both gateways are killed, one after the other, under streams whose clients go on: each
    answer is whole, and no token is computed twice."""
    streams = 100 if request.config.getoption("--long") else 24
    tokens, begun = 120, list[int]()

    before = settled(lambda: generated(pair))
    with ThreadPoolExecutor(streams) as pool:
        reading = [
            pool.submit(resumed, pair.balancer.url, seed, tokens, begun) for seed in range(streams)
        ]
        wait_until(lambda: len(begun) == streams)
        for number in range(2):
            pair.end(number, signal.SIGKILL)
            pair.start(number)
            wait_until(lambda: pair.states() == ["UP", "UP"], message=pair.states)
        found = [each.result(PATIENCE) for each in reading]
    assert [heard for heard, _ in found] == [text(seed, tokens) for seed in range(streams)]
    gaps = sorted(gap for _, gap in found)
    wait_until(lambda: generated(pair) - before >= streams * tokens)
    again = generated(pair) - before - streams * tokens
    print(
        f"{streams} streams through haproxy, longest silence of each: p50 "
        f"{gaps[streams // 2]:.2f} s, p99 {gaps[-1 - streams // 100]:.2f} s; {again} tokens again"
    )
    assert again == 0
