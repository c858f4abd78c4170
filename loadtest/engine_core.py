"""What the engine core costs, without sockets or a worker: `python -m loadtest.engine_core --help`.

Time to plan a step and to apply its result with many requests running, for pools of several sizes;
messages and bytes that a step sends to the worker; memory of the pool.  Every step is a decode of
all running requests, as in steady state.  Answers are made up outside the timed part.  Results go
to results/engine_core.json and .md.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from loadtest.report import Document, Flags, Measurement, machine_line, percentile, say, table
from penstock.config.settings import EngineConfig
from penstock.config.tree import replace_settings
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.common import Stopping, TokenSampling
from penstock.protocol.from_frontend import Hello, OpenSequence, Submit
from penstock.protocol.from_worker import Ready, Result, SlotResult, WorkerHello
from penstock.protocol.to_worker import Plan
from penstock_engine.core import EngineCore
from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.keys import root_key
from penstock_engine.sessions.effects import Effects
from penstock_planning.simulate.facts import facts

FRONTEND, WORKER = b"f" * 16, b"w" * 16
BLOCK = 16
"""Tokens of a KV block."""
PROMPT_TOKENS = 32
HOLDERS = 200
"""Sequences that hold blocks while the pool's operations are timed, of HELD blocks each."""
HELD = 4

STEPS = {
    "KV blocks": "{blocks:,}",
    "plan p50, ms": "{plan_ms:.3f}",
    "apply p50, ms": "{apply_ms:.3f}",
    "both p50, ms": "{both_ms:.3f}",
    "both p99, ms": "{both_p99_ms:.3f}",
    "messages a step": "{messages:.1f}",
    "bytes a step": "{bytes:,.0f}",
}
POOL = {
    "KV blocks": "{blocks:,}",
    "hit, us": "{hit_us:.2f}",
    "free, us": "{free_us:.2f}",
    "take, us": "{evict_us:.2f}",
    "memory, bytes": "{bytes_per_block:.2f}",
}


def measure(flags: Flags) -> Document:
    """A row for each size of the pool."""
    rows: list[dict[str, Any]] = []
    for blocks in flags.blocks:
        steps = step_figures(blocks, flags.running, flags.steps)
        rows.append({"blocks": blocks, **steps, **pool_figures(blocks)})
        say(json.dumps(rows[-1]))
    return {"running": flags.running, "rows": rows}


def step_figures(blocks: int, running: int, steps: int) -> dict[str, float]:
    """Milliseconds of core.step and core.worker_received, and what a step sends to the worker.

    A small pool holds only short outputs, so several rounds, each with a new core, may be needed.
    """
    output = min(steps + 2, blocks // running * BLOCK - PROMPT_TOKENS)
    if output < 6:
        raise SystemExit(f"{blocks} blocks are too few for {running} requests")
    plan_ms: list[float] = []
    apply_ms: list[float] = []
    messages: list[int] = []
    sizes: list[int] = []
    while len(plan_ms) < steps:
        core = decoding_core(blocks, running, output)
        waiting = deque(plans_of(core.step(0.0)))
        gc.collect()
        gc.freeze()
        for number in range(output - 4):
            result = answer(waiting.popleft())
            before = time.perf_counter()
            core.worker_received(WORKER, result, 0.0)
            between = time.perf_counter()
            effects = core.step(0.0)
            after = time.perf_counter()
            plans = plans_of(effects)
            waiting += plans
            if number:  # The first is the prompts'.
                apply_ms.append(1000 * (between - before))
                plan_ms.append(1000 * (after - between))
                messages.append(len(plans))
                sizes.append(sum(len(msgspec.msgpack.encode(plan)) for plan in plans))
        gc.unfreeze()
    both = [a + b for a, b in zip(plan_ms, apply_ms, strict=True)]
    return {
        "plan_ms": statistics.median(plan_ms),
        "apply_ms": statistics.median(apply_ms),
        "both_ms": statistics.median(both),
        "both_p99_ms": percentile(both, 0.99),
        "messages": statistics.mean(messages),
        "bytes": statistics.mean(sizes),
    }


def pool_figures(blocks: int) -> dict[str, float]:
    """Microseconds a block of the pool's operations, and bytes a block of its books."""
    tracemalloc.start()
    cache = KVCache(blocks, BLOCK)
    empty, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    keys = [root_key(str(number)) for number in range(HOLDERS * HELD)]
    tables: deque[tuple[list[int], list[bytes]]] = deque()
    for holder in range(HOLDERS):
        own = keys[HELD * holder : HELD * (holder + 1)]
        tables.append((cache.take(HELD), own))
        cache.publish(*tables[-1])
    spent: dict[str, list[float]] = {"hit": [], "free": [], "evict": []}
    for _ in range(200):
        blocks_of_one, own = tables.popleft()
        cache.release(blocks_of_one)
        spent["hit"].append(_timed(cache.claim, own)[0])
        spent["free"].append(_timed(cache.release, blocks_of_one)[0])
        took, taken = _timed(cache.take, HELD)
        spent["evict"].append(took)
        tables.append((taken, own))
    figures = {f"{name}_us": statistics.median(times) / HELD for name, times in spent.items()}
    return {**figures, "bytes_per_block": empty / blocks}


def _timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Microseconds, and what it gave."""
    begun = time.perf_counter()
    given = work(*arguments)
    return 1e6 * (time.perf_counter() - begun), given


def decoding_core(blocks: int, running: int, output: int) -> EngineCore:
    """An engine core without sockets, with `running` requests for `output` tokens each; this
    process is its front end and its worker."""
    settings = {
        "kv_block_size": BLOCK,
        "max_num_seqs": running,
        "max_num_batched_tokens": max(2048, running * PROMPT_TOKENS),
        "max_waiting_requests": 1_000_000,
        "max_waiting_tokens": 1_000_000_000,
        "max_model_len": 8192,
    }
    core = EngineCore(facts(replace_settings(EngineConfig(), settings)))
    core.frontend_opened(FRONTEND, Hello(list(PROTOCOL_VERSIONS), "loadtest", 0), 0.0)
    open_worker(core, blocks)
    for number in range(running):
        submit(core, number, list(range(3 + number, 3 + number + PROMPT_TOKENS)), output)
    return core


def open_worker(core: EngineCore, blocks: int) -> None:
    core.worker_opened(WORKER, WorkerHello(list(PROTOCOL_VERSIONS), 0, 0), 0.0)
    ready = Ready(num_kv_blocks=blocks, device="none", fingerprint="none", load_seconds=0.0)
    core.worker_received(WORKER, ready, 0.0)


def submit(core: EngineCore, number: int, prompt: list[int], output: int) -> None:
    sampling, stopping = TokenSampling(number, temperature=0.0), Stopping(max_tokens=output)
    request = Submit(number, str(number), prompt, [OpenSequence(0)], sampling, stopping)
    core.frontend_received(FRONTEND, request, 0.0)


def plans_of(effects: Effects) -> list[Plan]:
    return [message for _, message, _ in effects.to_workers if isinstance(message, Plan)]


def answer(plan: Plan) -> Result:
    """A token for each slot: every prompt is computed in one chunk here."""
    return Result(plan.step, [SlotResult(work.slot, 5) for work in plan.work])


def tables(document: Document) -> str:
    rows = document["rows"]
    return (
        f"{machine_line(document)}\n\n{document['running']} running requests, decode steps:\n\n"
        f"{table(STEPS, rows)}\nThe pool's own operations, a block each:\n\n{table(POOL, rows)}"
    )


COMMAND = Measurement(
    "engine_core",
    __doc__,
    measure,
    tables,
    {
        "--running": (256, "requests that run at once"),
        "--steps": (300, "steps to time for each pool size"),
        "--blocks": {"type": int, "nargs": "+", "default": [1_000, 10_000, 100_000, 1_000_000]},
    },
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
