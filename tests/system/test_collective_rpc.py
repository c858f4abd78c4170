"""Methods of a worker extension, called over HTTP and in the library, beside streams."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from penstock import LLM, SamplingParams
from penstock.errors import EngineUnavailable, InvalidRequest, RequestFailed
from testing.examples import install
from testing.serving import PATIENCE, Server, ServerFailed, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BODY = {"prompt": "abc", "max_tokens": 60, "temperature": 0.8, "ignore_eos": True}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the documentation's example is installed."""
    with pytest.MonkeyPatch.context() as patch:
        site = install("worker-extension", tmp_path_factory.mktemp("site"))
        known = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), known])))
        yield site


@pytest.fixture(scope="module")
def running(tiny_model: str, site: Path) -> Iterator[Server]:
    with Server(tiny_model) as server:
        yield server


def called(server: Server, method: str, **body: Any) -> httpx.Response:
    asked = {"method": method, **body}
    return httpx.post(f"{server.url}/collective_rpc", json=asked, timeout=PATIENCE)


def texts(server: Server) -> list[str]:
    """Texts of requests that come one after another."""
    found = []
    for seed in range(10):
        body = {**BODY, "seed": seed}
        reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE)
        found.append(reply.json()["choices"][0]["text"] if reply.is_success else reply.text)
    return found


class Beside(threading.Thread):
    """Asks for texts while something else goes on."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self.found: list[str] = []
        self.start()

    def run(self) -> None:
        self.found = texts(self._server)


def test_every_rank_answers(tiny_model: str, site: Path) -> None:
    with Server(tiny_model, "--tensor-parallel-size", "2") as ranks:
        results = called(ranks, "memory").json()["results"]
        assert [each["rank"] for each in results] == [0, 1]
        assert all(each["most_kib"] > 0 for each in results)
        reply = called(ranks, "scaled", args=[None])
        assert reply.json()["error"]["message"].startswith("rank 0: scaled: TypeError")
        reply = called(ranks, "pause", args=[1000], timeout=4)
        assert reply.status_code == 503, reply.text
        wait_until(lambda: called(ranks, "memory").status_code == 200)


def test_what_is_wrong_is_said_and_streams_go_on(running: Server) -> None:
    plain, beside = texts(running), Beside(running)
    for method, body, status, says in (
        ("none", {}, 400, "no worker extension has a method 'none'; there are: memory, pause"),
        ("memory", {"args": [1]}, 400, "memory: too many positional arguments"),
        ("scaled", {"args": [None]}, 500, "scaled: TypeError"),
        ("memory", {"timeout": 0}, 400, "timeout is 0; allowed: more than 0, up to 3600 s"),
    ):
        reply = called(running, method, **body)
        assert reply.status_code == status, reply.text
        assert says in reply.json()["error"]["message"]
    assert beside.is_alive()
    beside.join(PATIENCE)
    assert beside.found == plain


def test_a_method_that_hangs_costs_a_worker_and_no_stream(running: Server) -> None:
    plain, beside = texts(running), Beside(running)
    reply = called(running, "pause", args=[1000], timeout=4)
    assert reply.status_code == 503, reply.text
    assert "lost" in reply.json()["error"]["message"]
    assert beside.is_alive()
    beside.join(PATIENCE)
    assert beside.found == plain
    # It says where it was.
    wait_until(lambda: "example_worker_extension.py" in running.stderr)
    wait_until(lambda: called(running, "memory").status_code == 200)


def test_an_engine_core_that_dies_in_a_call_is_named_and_streams_go_on(running: Server) -> None:
    plain, beside = texts(running), Beside(running)
    line = 'event="a method of the workers is called" method=pause'
    before = running.stderr.count(line)
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(called, running, "pause", args=[2], timeout=60)
        wait_until(lambda: running.stderr.count(line) > before)
        os.kill(running.child("engine"), signal.SIGKILL)
        told = reply.result(PATIENCE)
    assert told.status_code == 503, told.text
    assert "the engine core is gone" in told.json()["error"]["message"]
    assert beside.is_alive()
    beside.join(PATIENCE)
    assert beside.found == plain
    wait_until(lambda: called(running, "memory").status_code == 200)


def test_in_the_library(tiny_model: str, site: Path) -> None:
    with LLM(tiny_model, num_kv_blocks=64) as llm:
        before = llm.generate("abc", SamplingParams(max_tokens=8, temperature=0.0))
        array = np.arange(6, dtype="float32").reshape(2, 3)
        (scaled,) = llm.collective_rpc("scaled", args=(array,), kwargs={"by": 2.0})
        assert scaled.dtype == array.dtype
        assert np.array_equal(scaled, 2 * array)
        with pytest.raises(InvalidRequest, match="code is never sent"):
            llm.collective_rpc(lambda worker: worker)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="a value of type object can't be sent"):
            llm.collective_rpc("scaled", args=(object(),))
        with pytest.raises(RequestFailed, match="scaled: TypeError"):
            llm.collective_rpc("scaled", args=(None,))
        with pytest.raises(EngineUnavailable, match="lost"):
            llm.collective_rpc("pause", 4, (1000,))
        after = llm.generate("abc", SamplingParams(max_tokens=8, temperature=0.0))
        assert after[0].outputs[0].token_ids == before[0].outputs[0].token_ids


def test_which_extensions_are_used(tiny_model: str, site: Path) -> None:
    with Server(tiny_model, "--worker-extensions", "none") as server:
        reply = called(server, "memory")
        assert reply.status_code == 400
        assert "there are: none: no worker extension is installed" in reply.text
    with pytest.raises(ServerFailed, match="no plug-in is called other; allowed: all, none, meas"):
        Server(tiny_model, "--worker-extensions", "other")
