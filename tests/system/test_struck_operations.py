"""Processes that are killed, or stand still for a while, in the middle of what an operator asked
for: it ends with an answer, streams have their bytes, and the system goes on."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from testing.processes import freeze
from testing.serving import PATIENCE, Server, wait_until
from testing.tiny_models import write_gguf
from tests.system.test_pause import Stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FROZEN = 4.0
"""Seconds: longer than a session lasts without a beat."""
BLOWS = [
    pytest.param("worker 0", "kill"),
    pytest.param("engine", "kill"),
    pytest.param("worker 0", "freeze", marks=pytest.mark.long),
    pytest.param("engine", "freeze", marks=pytest.mark.long),
]
WHOLE = {"max_tokens": 100, "temperature": 0.8, "seed": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets of weights, so large that they take a moment to load."""
    folder = tmp_path_factory.mktemp("struck")
    for seed in range(2):
        write_gguf(folder / f"{seed}.gguf", seed=seed, heads=48, kv_heads=48)
    return folder


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Server]:
    flags = ("--weights-allowed-folder", str(folder), "--num-kv-blocks", "512")
    with Server(str(folder / "0.gguf"), *flags, "--dtype", "float32") as server:
        yield server


def strike(server: Server, victim: str, how: str) -> None:
    pid = server.child(victim)
    if how == "kill":
        os.kill(pid, signal.SIGKILL)
        return
    freeze(pid)
    time.sleep(FROZEN)
    os.kill(pid, signal.SIGCONT)


def told(server: Server, path: str, **body: Any) -> tuple[int, str]:
    """The status, and what went wrong if anything did."""
    reply = httpx.post(f"{server.url}/{path}", timeout=2 * PATIENCE, **body)
    error = reply.json().get("error")
    assert (error is None) == (reply.status_code == 200), reply.text
    return reply.status_code, "" if error is None else error["message"]


def struck(
    server: Server, victim: str, how: str, operate: Callable[[], Any], *, after: float = 0.1
) -> Any:
    """What `operate` returns, under which the victim is struck after so many seconds."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(operate()))
    thread.start()
    time.sleep(after)  # Anywhere in it.
    strike(server, victim, how)
    thread.join(2 * PATIENCE)
    assert done, "it never ends"
    wait_until(server.ready)
    return done[0]


def alone(server: Server, **changes: Any) -> str:
    stream = Stream(server.url, **{**WHOLE, **changes})
    stream.join()
    assert stream.finish == "length"
    return stream.text


@pytest.mark.parametrize(("victim", "how"), BLOWS)
def test_sleep_and_waking(running: Server, victim: str, how: str) -> None:
    undisturbed = alone(running)
    stream = Stream(running.url, **WHOLE)
    wait_until(lambda: stream.text != "")

    def operate() -> list[tuple[int, str]]:
        return [
            told(running, path, params=query)
            for path, query in (("sleep", {"level": 2, "mode": "keep"}), ("wake_up", {}))
        ]

    for status, error in struck(running, victim, how, operate):
        assert status == 200 or (status == 503 and error)
    told(running, "wake_up")
    stream.join(2 * PATIENCE)
    assert (stream.text, stream.finish) == (undisturbed, "length")
    assert alone(running) == undisturbed


@pytest.mark.parametrize(("victim", "how"), BLOWS)
def test_a_replacement_of_weights(running: Server, victim: str, how: str) -> None:
    """One set or the other; the former, where it says that the new ones could not be loaded."""
    by = []
    for name in ("1.gguf", "0.gguf"):
        asked = {"model_path": name}
        assert told(running, "update_weights_from_disk", json=asked) == (200, "")
        by.append(alone(running))
    assert by[0] != by[1]
    open_one = Stream(running.url, **WHOLE)
    wait_until(lambda: open_one.text != "")
    body = {"model_path": "1.gguf"}
    status, error = struck(
        running, victim, how, lambda: told(running, "update_weights_from_disk", json=body)
    )
    open_one.join(2 * PATIENCE)
    assert (open_one.text, open_one.finish) == (by[1], "length")
    said = alone(running)
    assert said in by
    if status == 200:
        assert said == by[0]
    else:
        assert status in (500, 503)
        assert error
    if "the previous ones stay" in error:
        assert said == by[1]


def test_a_supervisor_that_stands_still_holds_nobody_up(running: Server) -> None:
    """What dies meanwhile is started again when it goes on; streams wait for that."""
    undisturbed = alone(running)
    worker = running.child("worker 0")
    freeze(running.process.pid)
    try:
        assert alone(running) == undisturbed
        stream = Stream(running.url, **WHOLE)
        wait_until(lambda: stream.text != "")
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not running.ready())
        assert "worker 0" not in running.processes()
    finally:
        os.kill(running.process.pid, signal.SIGCONT)
    stream.join(2 * PATIENCE)
    assert (stream.text, stream.finish) == (undisturbed, "length")
    assert running.processes()["worker 0"] != worker


@pytest.mark.long
@pytest.mark.parametrize("victim", ["worker 0", "engine"])
def test_who_stands_still_for_good_while_the_model_falls_asleep(
    running: Server, victim: str
) -> None:
    """The supervisor ends it: a worker's successor falls asleep, an engine core's knows nothing of
    it, and who asked was told so."""
    undisturbed = alone(running)
    stream = Stream(running.url, **WHOLE)
    wait_until(lambda: stream.text != "")
    pid = running.child(victim)
    freeze(pid)
    status, error = told(running, "sleep", params={"level": 2, "mode": "keep"})
    assert (status, bool(error)) == ((200, False) if victim == "worker 0" else (503, True))
    wait_until(lambda: running.processes().get(victim) not in (None, pid), 2 * PATIENCE)
    wait_until(lambda: told(running, "wake_up")[0] == 200)
    stream.join(2 * PATIENCE)
    assert (stream.text, stream.finish) == (undisturbed, "length")
    assert alone(running) == undisturbed


def test_a_request_that_a_worker_has_no_memory_for(running: Server) -> None:
    """It goes on, or comes back; what streams meanwhile has its bytes."""
    undisturbed = alone(running)
    pid = running.child("worker 0")
    held = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    stream = Stream(running.url, **WHOLE)
    wait_until(lambda: stream.text != "")
    limits = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (held + 2**20, limits[1]))
    try:
        large = {"prompt": [[n + 1] * 120 for n in range(64)], "max_tokens": 2, "logprobs": 5}
        reply = httpx.post(f"{running.url}/v1/completions", json=large, timeout=2 * PATIENCE)
        assert reply.status_code in (200, 500, 503), reply.text
        stream.join(2 * PATIENCE)
    finally:
        if running.children().get("penstock: worker 0") == pid:
            resource.prlimit(pid, resource.RLIMIT_AS, limits)
    wait_until(running.ready)
    assert (stream.text, stream.finish) == (undisturbed, "length")
    assert alone(running) == undisturbed


@pytest.fixture
def switching(
    start_server: Callable[..., Server], folder: Path, tmp_path: Path
) -> Callable[..., Server]:
    """Starts a system with two models and memory for one, and more flags."""

    def start(*flags: str) -> Server:
        entries = [
            {"name": name, "model": str(folder / f"{n}.gguf"), "load": "on-demand", "memory_gib": 1}
            for n, name in enumerate(("one", "two"))
        ]
        listed = tmp_path / "models.yaml"
        listed.write_text(yaml.safe_dump({"models": entries}))
        memory = ("--models-memory-gib", "1", "--model-turn-seconds", "0.5")
        return start_server("--models", str(listed), *memory, *flags)

    return start


def each_alone(server: Server) -> dict[str, str]:
    """What models say; the first one is loaded at the end."""
    said = {}
    for name in ("two", "one"):
        stream = Stream(server.url, model=name, **WHOLE)
        stream.join(2 * PATIENCE)
        assert stream.finish == "length"
        said[name] = stream.text
    return said


@pytest.mark.long
def test_who_stands_still_for_good_while_models_are_switched(
    switching: Callable[..., Server],
) -> None:
    """The one that makes way, under its stream; then the one that is loaded, which has less time
    than the supervisor gives to who stands still. Both end with what they say, or an error that
    says why; and the next request is answered."""
    server = switching("--model-load-timeout", "20")
    undisturbed = each_alone(server)
    former = Stream(server.url, model="one", **WHOLE)
    wait_until(lambda: former.text != "")
    freeze(server.child("worker 0 of one"))
    with ThreadPoolExecutor(1) as pool, httpx.Client(timeout=2 * PATIENCE) as client:

        def ask(model: str) -> httpx.Response:
            body = {"model": model, "prompt": "abc", "max_tokens": 4}
            return client.post(f"{server.url}/v1/completions", json=body)

        def ended_late(reply: httpx.Response) -> bool:
            return reply.status_code == 503 and "was not ready after 20 s" in reply.text

        assert ended_late(ask("two"))
        former.join(2 * PATIENCE)
        assert (former.text, former.finish) == (undisturbed["one"], "length")
        for victim in ("worker 0 of one", "engine of one"):
            wait_until(lambda: ask("two").status_code == 200, 2 * PATIENCE)
            asked = pool.submit(ask, "one")
            wait_until(lambda victim=victim: f"penstock: {victim}" in server.children())
            freeze(server.child(victim))
            assert ended_late(asked.result(2 * PATIENCE))
            wait_until(lambda: ask("one").status_code == 200, 2 * PATIENCE)


@pytest.mark.long
def test_a_supervisor_that_stands_still_switches_when_it_goes_on(
    switching: Callable[..., Server],
) -> None:
    server = switching()
    undisturbed = each_alone(server)
    freeze(server.process.pid)
    try:
        later = Stream(server.url, model="two", **WHOLE)
        assert alone(server, model="one") == undisturbed["one"]
        assert later.text == ""
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    later.join(2 * PATIENCE)
    assert (later.text, later.finish) == (undisturbed["two"], "length")


def test_a_switch_of_models_and_a_signal_under_it(switching: Callable[..., Server]) -> None:
    """The model that is loaded dies over it, and is loaded all the same; a shutdown doesn't wait
    for it."""
    server = switching()
    undisturbed = each_alone(server)

    def asks(model: str) -> Stream:
        return Stream(server.url, model=model, **WHOLE)

    for victim in ("worker 0", "engine"):
        former, later = asks("one"), asks("two")
        wait_until(lambda victim=victim: f"penstock: {victim} of two" in server.children())
        strike(server, f"{victim} of two", "kill")
        for name, stream in (("one", former), ("two", later)):
            stream.join(2 * PATIENCE)
            assert (stream.text, stream.finish) == (undisturbed[name], "length")
        back = asks("one")
        back.join(2 * PATIENCE)
        assert back.text == undisturbed["one"]
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        asked = threading.Thread(
            target=lambda: refused.append(client.post("/v1/completions", json=body))
        )
        refused: list[httpx.Response] = []
        body = {"model": "two", "prompt": "abc", "max_tokens": 4}
        asked.start()
        wait_until(lambda: "penstock: worker 0 of two" in server.children())
        assert server.stop() == 0
        asked.join(PATIENCE)
    (reply,) = refused
    assert reply.status_code in (200, 503), reply.text
    server.prove_gone()
