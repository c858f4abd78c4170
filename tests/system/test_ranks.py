"""One model over several workers: the same answers as one gives, and they fail as one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from testing.serving import PATIENCE, Server, ServerFailed, wait_until
from tests.system.test_drain import Reading, open_client, read

pytestmark = [pytest.mark.timeout(900)]

SMALL = ("--max-model-len", "256", "--num-kv-blocks", "96", "--dtype", "float32")
PATIENT = ("--peer-timeout", "10")
"""Four workers that load at once on two cores may be silent for longer than the default."""
PROMPTS = (
    "The capital of France is",
    "1, 2, 3, 4, 5,",
    "Once upon a time, in a small village by the sea, there lived an old fisherman who",
)
ASKED = ({"max_tokens": 10}, {"max_tokens": 10, "temperature": 0.9, "seed": 7})
LONG = " ".join(str(number) for number in range(40, 80))
"""Many steps of FEW tokens."""
FEW = ("--max-num-batched-tokens", "32")
STREAMS = 4
TOKENS = 24


def layout(tensor: int, pipeline: int, backend: str, *, long: bool = False) -> Any:
    marks = [pytest.mark.long] if long else []
    name = f"TP{tensor}-PP{pipeline}-{backend}"
    return pytest.param((tensor, pipeline, backend), id=name, marks=marks)


def answers(server: Server) -> list[str]:
    """To all prompts, greedy and seeded, asked together."""
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(server.complete, prompt, **fields) for prompt in PROMPTS for fields in ASKED
        ]
        return [one.result() for one in asked]


async def streams(url: str, kill: Any = None) -> list[Reading]:
    """Several at once; `kill` is called when each of them has begun."""
    async with open_client(url) as client:
        readings = [Reading() for _ in range(STREAMS)]
        tasks = [
            asyncio.create_task(read(client, n, TOKENS, reading))
            for n, reading in enumerate(readings)
        ]
        if kill is not None:
            async with asyncio.timeout(2 * PATIENCE):
                while not all(reading.chunks for reading in readings):
                    await asyncio.sleep(0.001)
            kill()
        return await asyncio.gather(*tasks)


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    server = Server("smollm2-135m", *SMALL, *PATIENT, *arguments, wait=False)
    try:
        server.wait_ready(300)
        yield server
    finally:
        server.close()


Said = tuple[list[str], list[Reading], str]


@pytest.fixture(scope="module")
def by_one_worker() -> Callable[[str], Said]:
    """What one worker answers and streams, and how it goes on with LONG, by backend."""

    @cache
    def said(backend: str) -> Said:
        with serving("--attention-backend", backend) as server:
            return answers(server), asyncio.run(streams(server.url)), goes_on(server)

    return said


def goes_on(server: Server) -> str:
    return server.complete(LONG, max_tokens=4)


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of that many tensor ranks and stages, on that backend. `cpu` is what `auto`
    takes."""
    tensor, pipeline, backend = request.param
    sizes = ("--tensor-parallel-size", str(tensor), "--pipeline-parallel-size", str(pipeline))
    named = () if backend == "cpu" else ("--attention-backend", backend)
    with serving(*sizes, *named, *(FEW if pipeline > 1 else ())) as server:
        yield server


@pytest.fixture
def alone(ranks: Server, request: pytest.FixtureRequest, by_one_worker: Any) -> Said:
    """What one worker says on the backend of `ranks`."""
    said: Said = by_one_worker(request.node.callspec.params["ranks"][2])
    return said


def test_one_worker_knows_the_capital(by_one_worker: Callable[[str], Said]) -> None:
    said = by_one_worker("cpu")
    assert said[0][0].startswith(" Paris")
    assert all(reading.done and reading.text for reading in said[1])


@pytest.mark.parametrize(
    "ranks",
    [
        layout(2, 1, "cpu", long=True),
        layout(3, 1, "cpu", long=True),
        layout(1, 2, "reference", long=True),
        layout(2, 2, "reference", long=True),
        layout(2, 2, "cpu"),
    ],
    indirect=True,
)
def test_several_ranks_answer_as_one_worker_does(
    alone: Said, ranks: Server, request: pytest.FixtureRequest
) -> None:
    tensor, pipeline, _ = request.node.callspec.params["ranks"]
    count = tensor * pipeline
    workers = sorted(name for name in ranks.children() if "worker" in name)
    assert workers == [f"penstock: worker {rank}" for rank in range(count)]
    assert answers(ranks) == alone[0]
    assert ranks.get("/status")[1]["engine"]["workers"] == count


@pytest.mark.parametrize(
    "ranks", [layout(1, 2, "reference", long=True), layout(2, 2, "cpu")], indirect=True
)
def test_chunks_of_a_prompt_follow_each_other_through_the_stages(
    alone: Said, ranks: Server
) -> None:
    assert goes_on(ranks) == alone[2]


@pytest.mark.parametrize(
    ("ranks", "victim"),
    [
        pytest.param((2, 1, "cpu"), "worker 1", marks=pytest.mark.long),
        pytest.param((2, 2, "reference"), "worker 0", marks=pytest.mark.long),
        ((2, 2, "cpu"), "worker 0"),
    ],
    indirect=["ranks"],
)
def test_a_killed_rank_breaks_no_stream(alone: Said, ranks: Server, victim: str) -> None:
    before = ranks.children()
    pid = before[f"penstock: {victim}"]
    disturbed = asyncio.run(streams(ranks.url, lambda: os.kill(pid, signal.SIGKILL)))
    assert disturbed == alone[1]
    wait_until(ranks.ready, 2 * PATIENCE, lambda: ranks.get("/status")[1])
    after = ranks.children()
    # The others left their group, and kept their weights.
    assert {name for name in before if before[name] != after[name]} == {f"penstock: {victim}"}
    assert answers(ranks) == alone[0]
    # Nobody has said anything but in lines of their own.
    assert all(line.startswith("time=") for line in ranks.stderr.splitlines())


def test_the_library_takes_vllms_keyword(tiny_model: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    said = []
    for keywords in ({}, {"tensor_parallel_size": 2}):
        with LLM(tiny_model, dtype="float32", num_kv_blocks=64, **keywords) as llm:
            outputs = llm.generate(["The quick brown fox", "def add("], params)
            said.append([output.outputs[0].token_ids for output in outputs])
    assert said[0] == said[1]


def test_a_model_too_small_for_its_ranks_is_refused_in_one_clear_line(tiny_model: str) -> None:
    with pytest.raises(ServerFailed) as caught:
        Server(tiny_model, "--pipeline-parallel-size", "2", "--attention-backend", "cpu")
    assert caught.value.code != 0
    assert "Traceback" not in caught.value.stderr
    assert "the model has 1 layers" in caught.value.stderr.strip().splitlines()[-1]
