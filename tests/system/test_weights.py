"""Weights that are replaced while the system runs: what was open ends with the former ones, and
what comes is said as by a server that never had others."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import LLM, SamplingParams
from penstock.errors import InvalidRequest
from testing.serving import PATIENCE, Server, wait_until
from testing.tiny_models import write_gguf
from tests.system.test_pause import Stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BODY = {"prompt": "abc", "max_tokens": 40, "temperature": 0.8, "ignore_eos": True}
PATH = "update_weights_from_disk"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that differ by their weights; another one; and one that is cut off in its weights."""
    folder = tmp_path_factory.mktemp("weights")
    for seed in range(3):
        write_gguf(folder / f"{seed}.gguf", seed=seed)
    write_gguf(folder / "wider.gguf", heads=6)
    whole = (folder / "2.gguf").read_bytes()
    (folder / "torn.gguf").write_bytes(whole[: len(whole) * 9 // 10])
    return folder


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Server]:
    flags = ("--weights-allowed-folder", str(folder), "--gateways", "2", "--dtype", "float32")
    with Server(str(folder / "0.gguf"), *flags) as server:
        yield server


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[str]]:
    """What each says that never was another one."""
    params = [
        SamplingParams(max_tokens=40, temperature=0.8, ignore_eos=True, seed=s) for s in (1, 2)
    ]
    found = []
    for seed in range(3):
        with LLM(str(folder / f"{seed}.gguf"), dtype="float32") as llm:
            outputs = llm.generate(["abc", "abc"], params)
            found.append([output.outputs[0].text for output in outputs])
    return found


def replaced(server: Server, name: str, **body: Any) -> httpx.Response:
    asked = {"model_path": f"{name}.gguf", **body}
    return httpx.post(f"{server.url}/{PATH}", json=asked, timeout=4 * PATIENCE)


def said(server: Server) -> list[str]:
    found = []
    for seed in (1, 2):
        reply = httpx.post(
            f"{server.url}/v1/completions", json={**BODY, "seed": seed}, timeout=4 * PATIENCE
        )
        assert reply.status_code == 200, reply.text
        found.append(reply.json()["choices"][0]["text"])
    return found


def test_answers_are_those_of_the_weights(running: Server, expected: list[list[str]]) -> None:
    """With the same prefix in the cache before."""
    for seed in (1, 2, 0):
        reply = replaced(running, str(seed))
        assert (reply.status_code, reply.json()["success"]) == (200, True), reply.text
        assert said(running) == expected[seed]


def test_what_has_begun_ends_with_what_it_began_with(running: Server) -> None:
    """And what comes meanwhile is computed by the new weights."""
    replaced(running, "0")
    alone = Stream(running.url)
    alone.join()
    replaced(running, "1")
    later = Stream(running.url)
    later.join()
    replaced(running, "0")
    assert alone.text != later.text
    stream = Stream(running.url)
    wait_until(lambda: stream.text != "")
    with ThreadPoolExecutor() as threads:
        change = threads.submit(replaced, running, "1")
        assert change.result().status_code == 200
    stream.join()
    assert (stream.text, stream.finish) == (alone.text, "length")
    after = Stream(running.url)
    after.join()
    assert after.text == later.text


def test_what_does_not_fit_changes_nothing(running: Server, expected: list[list[str]]) -> None:
    assert replaced(running, "0").status_code == 200
    reply = replaced(running, "wider")
    assert reply.status_code == 400
    assert "its config differs from the served model's: " in reply.text
    assert replaced(running, "nothing").status_code == 400
    assert replaced(running, "../0").status_code == 403
    assert replaced(running, "0", mode="keep").status_code == 400
    assert replaced(running, "torn").status_code in (400, 500)
    assert said(running) == expected[0]


@pytest.mark.parametrize("child", ["worker 0", "engine"])
def test_a_killed_process_comes_back_with_them(
    running: Server, expected: list[list[str]], child: str
) -> None:
    assert replaced(running, "2").status_code == 200
    pid, boot = running.child(child), running.get("/status")[1]["boot"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: running.children().get(f"penstock: {child}", pid) != pid)
    if child == "engine":
        wait_until(lambda: running.engine_replaced(boot))
    assert said(running) == expected[2]


def test_a_worker_that_dies_meanwhile(running: Server, expected: list[list[str]]) -> None:
    """One or the other, never both; and it says which."""
    assert replaced(running, "0").status_code == 200
    with ThreadPoolExecutor() as threads:
        change = threads.submit(replaced, running, "1")
        os.kill(running.child("worker 0"), signal.SIGKILL)
        worked = change.result().status_code == 200
    assert said(running) == expected[1 if worked else 0]


def test_a_file_that_was_replaced_on_disk_is_not_mixed_in(
    start_server: Callable[..., Server], folder: Path, expected: list[list[str]], tmp_path: Path
) -> None:
    """Gateways go on with what was prepared. A worker that had to read the new file ends the
    system, and the next one serves the new file."""
    file = tmp_path / "served.gguf"
    shutil.copy(folder / "0.gguf", file)
    server = start_server(str(file), "--dtype", "float32")
    assert said(server) == expected[0]
    before = file.stat()
    shutil.copy(folder / "1.gguf", tmp_path / "new")
    (tmp_path / "new").replace(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # As archives and rsync do.
    server.process.send_signal(signal.SIGUSR2)
    wait_until(lambda: 'event="gateways restarted"' in server.stderr)
    assert said(server) == expected[0]
    os.kill(server.child("worker 0"), signal.SIGKILL)
    assert server.process.wait(PATIENCE) != 0
    assert f"{file} isn't what it was when served was prepared" in server.stderr
    assert said(start_server(str(file), "--dtype", "float32")) == expected[1]


def test_ranks_sleep_and_change_together(folder: Path, expected: list[list[str]]) -> None:
    """What one rank gives back, and takes, all of them do; also one that dies meanwhile."""
    flags = ("--tensor-parallel-size", "2", "--weights-allowed-folder", str(folder))
    patient = ("--peer-timeout", "20", "--dtype", "float32")
    with Server(str(folder / "0.gguf"), *flags, *patient) as server:

        def told(path: str, **query: Any) -> None:
            reply = httpx.post(f"{server.url}/{path}", params=query, timeout=4 * PATIENCE)
            assert reply.status_code == 200, reply.text

        for level in (1, 2):
            told("sleep", level=level)
            told("wake_up")
            assert said(server) == expected[0]
        assert replaced(server, "1").status_code == 200
        assert said(server) == expected[1]
        assert replaced(server, "torn").status_code in (400, 500)
        assert said(server) == expected[1]
        told("sleep", level=2)
        pid = server.child("worker 1")
        os.kill(pid, signal.SIGKILL)
        assert replaced(server, "2").status_code == 200
        told("wake_up")
        assert said(server) == expected[2]


def test_library(folder: Path, expected: list[list[str]]) -> None:
    params = [
        SamplingParams(max_tokens=40, temperature=0.8, ignore_eos=True, seed=s) for s in (1, 2)
    ]
    with LLM(str(folder / "0.gguf"), dtype="float32") as llm:

        def texts() -> list[str]:
            return [output.outputs[0].text for output in llm.generate(["abc", "abc"], params)]

        assert texts() == expected[0]
        llm.update_weights(folder / "1.gguf")
        assert texts() == expected[1]
        llm.sleep(level=2)
        llm.update_weights(folder / "2.gguf", mode="abort")
        llm.wake_up()
        assert texts() == expected[2]
        with pytest.raises(InvalidRequest, match="hidden_size is 48, not 24"):
            llm.update_weights(folder / "wider.gguf")
        with pytest.raises(InvalidRequest, match="allowed: wait, abort"):
            llm.update_weights(folder / "0.gguf", mode="keep")  # type: ignore[arg-type]


def test_kv_on_disk_is_that_of_the_weights(folder: Path, tmp_path: Path) -> None:
    """Blocks of a prompt are there for both: each finds its own."""
    prompt = {"prompt_token_ids": [n % 200 + 1 for n in range(100)]}
    params = SamplingParams(max_tokens=20, temperature=0.8, ignore_eos=True, seed=3)
    kept = {"dtype": "float32", "disk_kv_dir": str(tmp_path / "kv"), "disk_kv_gib": 0.01}

    def text_of(llm: LLM) -> str:
        return llm.generate([prompt], params)[0].outputs[0].text

    alone = []
    for seed in (0, 1):
        with LLM(str(folder / f"{seed}.gguf"), dtype="float32") as llm:
            alone.append(text_of(llm))
    assert alone[0] != alone[1]
    with LLM(str(folder / "0.gguf"), **kept) as llm:
        for seed in (0, 1, 0, 1):
            llm.update_weights(folder / f"{seed}.gguf")
            assert text_of(llm) == alone[seed]
    assert len(list((tmp_path / "kv").glob("*/*.kv"))) == 2, "a folder for each"
