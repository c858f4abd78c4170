"""How soon `--audit-share` finds a fault, and what it costs: `python -m loadtest.audits`.

Faults are injected into a real model's engine core and worker, which run in this process with every
answer audited: one bit of a KV block is flipped where its contents are kept or on their way, before
the same question is asked again. Time counts from the fault; beside it stands how long the answer
took that it damaged. Then engines with and without audits take turns with the same requests: all of
them at once, so that no step is spare, and one by one with pauses, in which audits run.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from deploy.local import free_port
from loadtest.report import Document, Flags, Measurement, SetupError, machine_line, say, table
from penstock import AsyncLLM, SamplingParams
from penstock.cli.engine_tools import silence
from penstock.prepare import prepare
from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import Plan, ToWorker
from penstock_engine.kv.keys import prefix_root, prompt_keys
from penstock_engine.waiting.live_audit import LiveAudit
from penstock_worker.stores.contents import Contents
from penstock_worker.stores.host_cache import HostCache, HostCopy
from tests.system.in_process import Numerics, System, Way, prompt

BLOCK, PROMPT_TOKENS, ANSWER_TOKENS = 16, 200, 32
NUMERICS = Numerics("auto", "auto")
WAY = Way(BLOCK, 256, num_blocks=512, max_model_len=512, audit_share=1.0)
BIT = 0x40
"""The bit that is flipped in a byte: the highest of a bfloat16's mantissa."""
FLIPPED = 3
"""The prompt's block that is damaged."""
GREEDY = TokenSampling(seed=0, temperature=0.0)
QUESTION = prompt(PROMPT_TOKENS, 1)


class Audited(System):
    """A real model's System. damaged: called after each of its worker's steps."""

    def __init__(self, folder: Path, way: Way) -> None:
        super().__init__(folder, NUMERICS, way)
        self.damaged: Callable[[Plan], None] = lambda plan: None
        self._last = 0

    def _work(self, message: ToWorker) -> None:
        super()._work(message)
        if isinstance(message, Plan):
            self.damaged(message)

    @property
    def audits(self) -> LiveAudit:
        found = self.core.state.audits
        if found is None:
            raise SetupError("the engine core audits nothing")
        return found

    @property
    def copies(self) -> Any:
        """The worker's blocks, on the device and in host memory."""
        if self.loaded is None:
            raise SetupError("the worker has loaded nothing")
        runner: Any = self.loaded.runner
        return runner._kind._copies

    def ask(self, *questions: list[int], answer: int = ANSWER_TOKENS) -> float:
        """Asks at once; the seconds until all are answered. Audits are still to come."""
        begun = time.perf_counter()
        for question in questions:
            self._last += 1
            self.submit(self._last, question, answer, GREEDY)
        self.run()
        return time.perf_counter() - begun

    def settle(self) -> None:
        """Until nothing waits to be audited."""
        while self.audits.num_held:
            self.run_step()


class Fault(NamedTuple):
    """tier: that audits must accuse.  inject: gives a system with one right answer, and the
    damage begins when that is asked for."""

    name: str
    tier: str
    inject: Callable[[Path, Path], contextlib.AbstractContextManager[Audited]]


def flip(parts: list[Any], block: int) -> None:
    parts[0][block, 2] ^= BIT


def _key() -> bytes:
    return list(prompt_keys(prefix_root("", ""), QUESTION, BLOCK))[FLIPPED]


def _begun(folder: Path, way: Way) -> Audited:
    system = Audited(folder, way)
    system.ask(QUESTION)
    system.settle()
    if system.audits.different:
        raise SetupError("an answer was wrong before anything was damaged")
    return system


@contextlib.contextmanager
def in_pool(folder: Path, place: Path) -> Iterator[Audited]:
    system = _begun(folder, WAY)
    cache: Any = system.core.state.scheduling.cache
    flip(system.copies._device, cache._block_of[_key()])
    yield system


@contextlib.contextmanager
def in_host_memory(folder: Path, place: Path) -> Iterator[Audited]:
    system = _begun(folder, replace(WAY, num_blocks=24, host_kib=2**18))
    system.ask(prompt(PROMPT_TOKENS, 2))  # What the first one computed makes room for it.
    system.settle()
    host: Any = system.core.state.scheduling.cache
    flip(system.copies._host, host.host._blocks[_key()])
    yield system


@contextlib.contextmanager
def _patched(name: str, damaged: Callable[..., Any]) -> Iterator[None]:
    whole = getattr(HostCache, name)
    setattr(HostCache, name, damaged(whole))
    try:
        yield
    finally:
        setattr(HostCache, name, whole)


@contextlib.contextmanager
def on_the_way_to_disk(folder: Path, place: Path) -> Iterator[Audited]:
    """Before the checksum is made, which so is right."""

    def damaged(whole: Callable[..., HostCopy]) -> Callable[..., HostCopy]:
        def copied(self: HostCache, block: int) -> HostCopy:
            copy = whole(self, block)
            copy._data[2] ^= BIT
            return copy

        return copied

    way = replace(WAY, disk=str(place))
    with _patched("_copied", damaged):
        _close(_begun(folder, way))
    system = Audited(folder, way)
    system.ask([1, 2, 3], answer=1)  # The worker loads.
    system.settle()
    yield system
    _close(system)


@contextlib.contextmanager
def in_transit(folder: Path, place: Path) -> Iterator[Audited]:
    """After the checksum was compared."""

    def damaged(whole: Callable[..., None]) -> Callable[..., None]:
        def write(self: HostCache, block: int, data: Contents) -> None:
            whole(self, block, data)
            flip(self._parts, block)

        return write

    way = replace(WAY, disk=str(place))
    _close(_begun(folder, way))
    system = Audited(folder, way)
    system.ask([1, 2, 3], answer=1)
    system.settle()
    with _patched("write", damaged):
        yield system
    _close(system)


@contextlib.contextmanager
def in_one_lane(folder: Path, place: Path) -> Iterator[Audited]:
    """A kernel that stores what the second of several sequences computes with a wrong bit."""
    system = _begun(folder, replace(WAY, prefix_caching=False))

    def damaged(plan: Plan) -> None:
        if len(plan.work) > 1:
            running = system.core.state.scheduling.running.get(plan.work[1].slot)
            if running is not None and running.table is not None and running.table.blocks:
                flip(system.copies._device, running.table.blocks[0])

    system.damaged = damaged
    yield system


def _close(system: Audited) -> None:
    if system.loaded is not None:
        system.loaded.runner.close()


FAULTS = (
    Fault("a bit of a block in the pool", "prefix_cache", in_pool),
    Fault("a bit of a block in host memory", "host", in_host_memory),
    Fault("a bit on the way to disk, before the checksum", "disk", on_the_way_to_disk),
    Fault("a bit of a block read, after the checksum", "disk", in_transit),
    Fault("a kernel in one of two lanes", "none", in_one_lane),
)


def found(fault: Fault, folder: Path) -> tuple[float, float]:
    """Seconds of the damaged answer, and from its end until the fault was found."""
    with (
        tempfile.TemporaryDirectory(prefix="pst-") as place,
        fault.inject(folder, Path(place)) as system,
    ):
        questions = [QUESTION] if fault.tier != "none" else [prompt(PROMPT_TOKENS, 3), QUESTION]
        answered, begun = system.ask(*questions), time.perf_counter()
        while system.audits.num_held and not system.audits.different:
            system.run_step()
        seconds = time.perf_counter() - begun
        if fault.tier not in system.audits.found:
            raise SetupError(f"{fault.name}: audits found {system.audits.found}")
        return answered, seconds


# ---- what audits cost


class Run(NamedTuple):
    """busy: seconds of all requests at once.  paused: mean seconds of a request of those that come
    one by one.  audited: sequences."""

    busy: float
    paused: float
    audited: int


async def _run(flags: Flags, share: float, seed: int) -> Run:
    port = free_port()
    settings: dict[str, Any] = {"speculative_config": "off", "max_num_seqs": 8}
    async with AsyncLLM(
        flags.model, audit_share=share, engine_metrics_port=port, **settings
    ) as llm:
        rng = random.Random(seed)
        params = SamplingParams(max_tokens=48, ignore_eos=True, temperature=0.0)

        async def one() -> None:
            ids = [rng.randrange(1000, 20_000) for _ in range(64)]
            generation = await llm.client.submit(ids, params, name=f"r{rng.random()}")
            async for _ in generation:
                pass

        await one()
        begun = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(flags.requests)))
        busy = time.perf_counter() - begun
        taken = []
        for _ in range(flags.requests // 4):
            begun = time.perf_counter()
            await one()
            taken.append(time.perf_counter() - begun)
            await asyncio.sleep(taken[-1])
        return Run(busy, statistics.mean(taken), await asyncio.to_thread(_audited, port))


def _audited(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    counted = [line for line in lines if line.startswith("penstock:audits_total")]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in counted))


def measure(flags: Flags) -> Document:
    silence()
    folder = prepare(flags.model)
    rows: list[Document] = []
    for fault in FAULTS:
        times = [found(fault, folder) for _ in range(flags.rounds)]
        answered, later = (statistics.median(each) for each in zip(*times, strict=True))
        rows.append({"fault": fault.name, "tier": fault.tier, "answer": answered, "found": later})
        say(f"{fault.name}: {rows[-1]}")
    runs: dict[float, list[Run]] = {share: [] for share in (0.0, *flags.shares)}
    for number in range(flags.rounds):
        for share, done in runs.items():
            done.append(asyncio.run(_run(flags, share, number)))
            say(f"share {share:g}: {done[-1]}")
    return {"model": flags.model, "requests": flags.requests, "faults": rows, "cost": _cost(runs)}


def _cost(runs: dict[float, list[Run]]) -> list[Document]:
    """Ratios to the run without audits of the same round: medians."""
    without = runs[0.0]

    def ratio(done: list[Run], name: str) -> float:
        pairs = zip(without, done, strict=True)
        ratios = [getattr(one, name) / getattr(other, name) for one, other in pairs]
        return float(statistics.median(ratios))

    return [
        {
            "share": share,
            "throughput": ratio(done, "busy"),
            "latency": 1 / ratio(done, "paused"),
            "audited": statistics.median(run.audited for run in done),
            "rounds": [run._asdict() for run in done],
        }
        for share, done in runs.items()
    ]


def markdown(document: Document) -> str:
    faults_found = {
        "fault": "{fault}",
        "accused": "{tier}",
        "damaged answer, ms": "{answer_ms:.0f}",
        "found after its end, ms": "{found_ms:.0f}",
    }
    cost = {
        "`--audit-share`": "{share:g}",
        "throughput, all at once": "{throughput:.3f}",
        "time of an answer, with pauses": "{latency:.3f}",
        "answers audited": "{audited:.0f}",
    }
    rows = [
        {**row, "answer_ms": 1000 * row["answer"], "found_ms": 1000 * row["found"]}
        for row in document["faults"]
    ]
    return (
        f"{machine_line(document)}\n\n{document['model']}; prompts of {PROMPT_TOKENS} tokens,"
        f" answers of {ANSWER_TOKENS}; every answer is audited. Each fault was found, in each"
        f" round, and the right tier accused.\n\n{table(faults_found, rows)}\n\nWith a smaller"
        " share, so many answers are damaged first as one of them is chosen.\n\n"
        f"{document['requests']} requests of 64 and 48 tokens; ratios to no audits, of the same"
        f" round, of which there were {len(document['cost'][0]['rounds'])}: rounds differ by more"
        f" than small shares cost.\n\n{table(cost, document['cost'])}\n"
    )


def faults(document: Document) -> str:
    """Says so where audits cost more than their share, and more than what rounds differ by."""
    dear = [
        f"{row['share']:g}: {row['throughput']:.3f}"
        for row in document["cost"]
        if row["throughput"] < 1 - max(row["share"], 0.05)
    ]
    return f"throughput with audits of a share of {', '.join(dear)}" if dear else ""


def shares(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


FLAGS = {
    "--model": ("smollm2-135m", "that is served"),
    "--shares": {"type": shares, "default": [0.001, 0.1, 1.0], "help": "that are audited"},
    "--requests": (48, "of each run"),
    "--rounds": (3, "of which the median counts"),
}
COMMAND = Measurement("audits", __doc__, measure, markdown, FLAGS, head="# Audits", faults=faults)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
