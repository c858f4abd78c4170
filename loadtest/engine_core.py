"""What the engine core costs, without sockets or a worker: `python loadtest/engine_core.py --help`.

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
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec

from loadtest.report.facts import machine_line
from loadtest.report.figures import percentile
from loadtest.report.files import Report, parser, say
from loadtest.report.table import table
from penstock.config.settings import EngineConfig
from penstock.config.tree import replace_settings
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.common import Stopping, TokenSampling
from penstock.protocol.from_frontend import Hello, OpenSequence, Submit
from penstock.protocol.from_worker import Ready, Result, SlotResult, WorkerHello
from penstock.protocol.to_worker import Plan
from penstock_engine.core import EngineCore
from penstock_engine.facts import EngineFacts
from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.keys import root_key
from penstock_engine.sessions.effects import Effects
from penstock_engine.simulate.model import facts as simulated_facts

PROGRAM = "loadtest/engine_core.py"
FRONTEND, WORKER = b"f" * 16, b"w" * 16
PROMPT_TOKENS = 32
BLOCK_SIZE = 16
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


def main() -> None:
    command = parser(PROGRAM, __doc__)
    command.add_argument("--running", type=int, default=256, help="requests that run at once")
    command.add_argument("--steps", type=int, default=300, help="steps to time for each pool size")
    command.add_argument(
        "--blocks", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000]
    )
    flags = command.parse_args()
    report = Report("engine_core", PROGRAM, flags)
    rows: list[dict[str, Any]] = []
    for blocks in flags.blocks:
        steps = step_figures(blocks, flags.running, flags.steps)
        rows.append({"blocks": blocks, **steps, **pool_figures(blocks)})
        say(json.dumps(rows[-1]))
    report.finish(
        {"running": flags.running, "rows": rows},
        lambda facts: f"{machine_line(facts)}\n\n{tables(flags.running, rows)}",
    )


def step_figures(blocks: int, running: int, steps: int) -> dict[str, float]:
    """Milliseconds of core.step and core.worker_received, and what a step sends to the worker.

    A small pool holds only short outputs, so several rounds, each with a new core, may be needed.
    """
    output = min(steps + 2, blocks // running * BLOCK_SIZE - PROMPT_TOKENS)
    if output < 6:
        raise SystemExit(f"{blocks} blocks are too few for {running} requests")
    plan_ms: list[float] = []
    apply_ms: list[float] = []
    messages: list[int] = []
    sizes: list[int] = []
    while len(plan_ms) < steps:
        core = started_core(blocks, running, output)
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
    cache = KVCache(blocks, BLOCK_SIZE)
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


def tables(running: int, rows: list[dict[str, Any]]) -> str:
    return (
        f"{running} running requests, decode steps:\n\n{table(STEPS, rows)}\n"
        f"The pool's own operations, a block each:\n\n{table(POOL, rows)}"
    )


def started_core(blocks: int, running: int, output: int) -> EngineCore:
    """With a worker, and `running` requests for `output` tokens each."""
    core = EngineCore(facts(running))
    core.frontend_opened(FRONTEND, Hello(list(PROTOCOL_VERSIONS), "benchmark", 0), 0.0)
    core.worker_opened(WORKER, WorkerHello(list(PROTOCOL_VERSIONS), 0, 0), 0.0)
    ready = Ready(num_kv_blocks=blocks, device="none", fingerprint="none", load_seconds=0.0)
    core.worker_received(WORKER, ready, 0.0)
    for number in range(running):
        submit = Submit(
            number,
            f"request-{number}",
            list(range(3 + number, 3 + number + PROMPT_TOKENS)),
            [OpenSequence(0)],
            TokenSampling(seed=number, temperature=0.0),
            Stopping(max_tokens=output),
        )
        core.frontend_received(FRONTEND, submit, 0.0)
    return core


def plans_of(effects: Effects) -> list[Plan]:
    return [message for _, message, _ in effects.to_workers if isinstance(message, Plan)]


def answer(plan: Plan) -> Result:
    """A token for each slot: every prompt is computed in one chunk here."""
    return Result(plan.step, [SlotResult(work.slot, 5) for work in plan.work])


def facts(running: int) -> EngineFacts:
    settings = {
        "max_num_seqs": running,
        "max_num_batched_tokens": max(2048, running * PROMPT_TOKENS),
        "max_waiting_requests": 1_000_000,
        "max_waiting_tokens": 1_000_000_000,
        "kv_block_size": BLOCK_SIZE,
        "max_model_len": 8192,
    }
    return simulated_facts(replace_settings(EngineConfig(), settings))


if __name__ == "__main__":
    main()
