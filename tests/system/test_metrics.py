"""The metrics of a whole system: every name, by its process, and counts that clients agree with."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from testing.metrics_page import PORTS, Page, port_of, read_page
from testing.processes import freeze
from testing.serving import PATIENCE, Server, wait_until
from tests.gateway import keyring
from tests.metrics_names import ENGINE, GATEWAY, LABELS, PROCESS, WORKER

pytestmark = [pytest.mark.timeout(600)]

ASK = {"x-penstock-timeline": "1"}

LEAST, TENANT = "sk-least", "sk-tenant"


@pytest.fixture(scope="module")
def system(tiny_model: str) -> Iterator[Server]:
    """Little room, so that sequences are preempted; a host tier, so that blocks go there. One
    thread, so that the phases of a step are parts of its time: of several, each counts its own."""
    flags = ("--num-kv-blocks", "12", "--host-kv-gib", "0.01", "--scheduling-policy", "fair")
    flags += ("--threads", "1")
    running = Server(tiny_model, *PORTS, *flags, "--served-model-name", "toy/model")
    try:
        yield running
    finally:
        running.close()


def pages(server: Server) -> dict[str, Page]:
    """Pages of all three, once the engine core is idle and what it says is no older than that."""
    engine = port_of(server, "engine")

    def idle() -> bool:
        page = read_page(engine)
        running = page.value("vllm:num_requests_running")
        waiting = page.value("vllm:num_requests_waiting")
        # What a step in flight refers to is free when that step is over.
        return running + waiting + page.value("penstock:kv_blocks", state="used") == 0

    time.sleep(0.3)  # A state that was made before is too old now to be shown again.
    wait_until(idle)
    wait_until(lambda: server.get("/status")[1]["gateway"]["open_requests"] == 0)
    worker = port_of(server, "worker 0")
    return {
        "engine": read_page(engine),
        "worker": read_page(worker),
        "gateway": read_page(server.url),
    }


def test_every_family_is_there_and_in_its_own_place(system: Server) -> None:
    system.complete(max_tokens=4)
    found = pages(system)
    for name, wanted in (("engine", ENGINE), ("worker", WORKER), ("gateway", GATEWAY)):
        kinds = {n: kind for n, kind in found[name].kinds.items() if not n.startswith("process_")}
        expected = wanted if name != "gateway" else {n: k for n, k in kinds.items() if n in wanted}
        assert expected == wanted
        assert {n: kinds.get(n) for n in wanted} == wanted
        assert PROCESS.items() <= found[name].kinds.items()
        assert found[name].models("vllm:") <= {"toy/model"}
        assert found[name].models("penstock:") == {"toy/model"}
        if name != "gateway":
            assert set(kinds) == set(wanted)
    # What is told twice would be added up twice.
    own = {n: set(page.kinds) - set(PROCESS) for n, page in found.items()}
    own = {n: {f for f in families if ":" in f} for n, families in own.items()}
    assert not own["engine"] & own["gateway"]
    assert not own["worker"] & (own["engine"] | own["gateway"])
    for (family, label), values in LABELS.items():
        assert set(found["engine"].labelled(family, label)) == values
    phases = found["worker"].labelled("penstock:worker_phase_seconds_total", "phase")
    assert set(phases) == {"forward", "sample", "masks", "copies", "encode"}
    fetched = found["worker"].labelled("penstock:worker_peer_kv_blocks_total", "result")
    assert fetched == {"fetched": 0, "gone": 0, "served": 0}
    moved = found["worker"].labelled("penstock:worker_peer_kv_bytes_total", "direction")
    assert moved == {"in": 0, "out": 0}


def test_each_process_tells_of_itself(system: Server) -> None:
    found = pages(system)
    for name, title in (("engine", "engine"), ("worker", "worker 0"), ("gateway", "gateway 0")):
        process = psutil.Process(system.child(title))
        resident = found[name].value("process_resident_memory_bytes")
        assert resident == pytest.approx(process.memory_info().rss, rel=0.2)
        started = found[name].value("process_start_time_seconds")
        assert started == pytest.approx(process.create_time(), abs=2)


async def ask_all(server: Server, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All at once."""
    import asyncio

    async with httpx.AsyncClient(base_url=server.url, timeout=240) as client:
        asking = [client.post("/v1/completions", json=body, headers=ASK) for body in bodies]
        return [answer.json() for answer in await asyncio.gather(*asking)]


async def test_counts_are_those_of_the_clients(system: Server) -> None:
    before = pages(system)
    shared = "one two three four five six seven eight "
    bodies = [
        {"prompt": shared * (1 + n % 2) + f"and {n}", "max_tokens": 20 + n, "ignore_eos": True}
        for n in range(16)
    ]
    answers = await ask_all(system, bodies)
    usages = [answer["usage"] for answer in answers]
    sequences = [each for answer in answers for each in answer["penstock_timeline"]["sequences"]]
    after = pages(system)

    def grown(process: str, name: str, **labels: str) -> float:
        first = before[process].values(name, **labels)  # A tenant has none before its request.
        return after[process].value(name, **labels) - sum(first)

    prompt = sum(usage["prompt_tokens"] for usage in usages)
    output = sum(usage["completion_tokens"] for usage in usages)
    hits = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert grown("engine", "penstock:tenant_prompt_tokens_total", tenant="anonymous") == prompt
    assert grown("engine", "penstock:tenant_generation_tokens_total", tenant="anonymous") == output
    assert grown("engine", "vllm:prefix_cache_queries_total") == prompt
    assert grown("engine", "vllm:prefix_cache_hits_total") == hits > 0
    assert grown("engine", "penstock:requests_ended_total", end="length") == 16
    preemptions = sum(each["preemptions"] for each in sequences)
    assert grown("engine", "vllm:num_preemptions_total") == preemptions > 0
    swaps = sum(each["swaps"] for each in sequences)
    assert grown("engine", "penstock:swapped_blocks_total", direction="in") == swaps
    assert grown("engine", "penstock:swapped_blocks_total", direction="out") > 0

    # The worker counted the same steps by itself.
    steps = grown("engine", "penstock:steps_total")
    assert grown("worker", "penstock:worker_step_seconds_count") == steps
    computed = grown("engine", "vllm:iteration_tokens_total_sum")
    assert grown("worker", "penstock:worker_tokens_total") == computed
    busy = grown("worker", "penstock:worker_busy_seconds_total")
    assert grown("engine", "penstock:step_part_seconds_total", part="compute") == pytest.approx(
        busy, abs=1e-3
    )
    assert grown("engine", "penstock:step_sequences_count") == steps
    # Each sequence's steps, and those that it was in when it was preempted.
    in_steps = grown("engine", "penstock:step_sequences_sum")
    assert in_steps == sum(each["steps"] for each in sequences)
    phases = sum(
        grown("worker", "penstock:worker_phase_seconds_total", phase=phase)
        for phase in ("forward", "sample", "masks", "copies")
    )
    assert 0 < phases <= 1.05 * busy
    for part in ("plan", "apply", "dispatch"):
        assert grown("engine", "penstock:step_part_seconds_total", part=part) > 0
    assert grown("gateway", "vllm:generation_tokens_total") == output

    engine = after["engine"]
    blocks = engine.labelled("penstock:kv_blocks", "state")
    assert (sum(blocks.values()), blocks["used"]) == (12, 0)
    assert blocks["cached"] > 0
    assert engine.value("vllm:kv_cache_usage_perc") == 0
    assert engine.value("penstock:frontends") >= 1
    assert engine.value("penstock:workers") == engine.value("penstock:engine_ready") == 1
    assert engine.value("penstock:tenant_open_requests", tenant="anonymous") == 0


async def test_the_phases_are_much_of_a_steps_time(system: Server) -> None:
    """In the best of ten rounds: a busy machine may stop a worker between two phases."""
    shares: list[float] = []
    while max(shares, default=0.0) <= 0.3:
        assert len(shares) < 10, shares
        before = pages(system)["worker"]
        await ask_all(system, [{"prompt": "one two", "max_tokens": 30, "ignore_eos": True}] * 4)
        after = pages(system)["worker"]
        spent = [
            sum(page.values("penstock:worker_phase_seconds_total")) for page in (before, after)
        ]
        busy = [page.value("penstock:worker_busy_seconds_total") for page in (before, after)]
        shares.append((spent[1] - spent[0]) / (busy[1] - busy[0]))


def test_what_runs_and_waits_is_seen_while_it_does(system: Server) -> None:
    engine = port_of(system, "engine")
    pids = [system.child("worker 0")]
    answers: list[str] = []
    asking = [
        threading.Thread(target=lambda: answers.append(system.complete("a b c", max_tokens=60)))
        for _ in range(3)
    ]
    freeze(pids[0])
    try:
        for thread in asking:
            thread.start()
        wait_until(
            # The tenant may not be known yet.
            lambda: (
                sum(read_page(engine).values("penstock:tenant_open_requests", tenant="anonymous"))
                == 3
            )
        )
        page = read_page(engine)
        assert (
            page.value("vllm:num_requests_running") + page.value("vllm:num_requests_waiting") == 3
        )
    finally:
        os.kill(pids[0], signal.SIGCONT)
    for thread in asking:
        thread.join(4 * PATIENCE)
    assert len(answers) == 3


def test_a_worker_that_is_killed_counts_and_so_does_the_recovery(
    start_server: Callable[..., Server], tiny_model: str
) -> None:
    server = start_server(tiny_model, *PORTS)
    engine = port_of(server, "engine")
    undisturbed = server.complete(max_tokens=100, ignore_eos=True)
    victim = server.child("worker 0")
    texts: list[str] = []

    def ask() -> None:
        texts.append(server.complete(max_tokens=100, ignore_eos=True))

    asking = threading.Thread(target=ask)
    begun = time.monotonic()
    freeze(victim)  # So that it dies under the request for sure.
    asking.start()
    # It may wait again already, where the worker has been silent for too long.
    wait_until(
        lambda: sum(read_page(engine).values("penstock:tenant_open_requests")) == 1,
        message=lambda: texts,
    )
    os.kill(victim, signal.SIGKILL)
    asking.join(4 * PATIENCE)
    elapsed = time.monotonic() - begun
    assert texts == [undisturbed]
    page = read_page(engine)
    assert page.value("penstock:worker_deaths_total") == 1
    assert page.value("penstock:recovery_seconds_count") == 1
    assert 0 < page.value("penstock:recovery_seconds_sum") <= elapsed
    # The new one tells of itself, under an address of its own as it asked for any free port.
    worker = read_page(port_of(server, "worker 0"))
    assert worker.value("penstock:worker_sessions_total") == 1
    assert worker.value("penstock:worker_load_seconds") > 0
    assert worker.value("penstock:worker_kv_bytes") > 0

    os.kill(server.child("engine"), signal.SIGKILL)
    # The same worker in another session.
    address = port_of(server, "worker 0")
    wait_until(
        lambda: read_page(address).value("penstock:worker_sessions_total") == 2, 2 * PATIENCE
    )
    assert read_page(address).value("penstock:worker_step_seconds_count") >= 1


@pytest.mark.parametrize("policy", ["auto", "fcfs"])
def test_tenants_are_called_by_their_keys_digests(
    start_server: Callable[..., Server], tiny_model: str, tmp_path: Path, policy: str
) -> None:
    keys = keyring.write(tmp_path / "keys.json", keyring.key(LEAST), keyring.key(TENANT))
    flags = ("--api-keys", keys, "--scheduling-policy", policy)
    server = start_server(tiny_model, *PORTS, *flags)
    body = {"prompt": "one two", "max_tokens": 7, "ignore_eos": True}
    for secret, times in ((LEAST, 1), (TENANT, 3)):
        for _ in range(times):
            answer = httpx.post(
                f"{server.url}/v1/completions",
                json=body,
                headers=keyring.bearer(secret),
                timeout=240,
            )
            assert answer.status_code == 200
    found = read_page(port_of(server, "engine"))
    expected = {
        hashlib.sha256(s.encode()).hexdigest()[:32]: n for s, n in ((LEAST, 7), (TENANT, 21))
    }
    assert found.labelled("penstock:tenant_generation_tokens_total", "tenant") == expected
    keeps_accounts = "penstock:tenant_debt" in found.kinds
    assert keeps_accounts == (policy == "auto"), "with a file of keys, shares are fair"
