"""How soon `--audit-share` finds a fault, and what it costs: `python -m loadtest.audits`.

Faults are injected into a real model's engine core and worker, which run in this process with every
answer audited: one bit of a KV block is flipped where its contents are kept or on their way, before
the same question is asked again. Time counts from the fault; beside it stands how long the answer
took that it damaged. Then engines with and without audits take turns with the same requests: all of
them at once, so that no step is spare, and one by one with pauses, in which audits run.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from deploy.local import free_port
from loadtest.audited_faults import (
    ANSWER_TOKENS,
    FAULTS,
    PROMPT_TOKENS,
    QUESTION,
    Fault,
    in_one_lane,
)
from loadtest.report import Document, Flags, Measurement, SetupError, machine_line, say, table
from penstock import AsyncLLM, SamplingParams
from penstock.cli.replay import silence
from penstock.prepare import prepare
from tests.system.in_process import prompt


def found(fault: Fault, folder: Path) -> tuple[float, float]:
    """Seconds of the damaged answer, and from its end until the fault was found."""
    with (
        tempfile.TemporaryDirectory(prefix="pst-") as place,
        fault.inject(folder, Path(place)) as system,
    ):
        others = [prompt(PROMPT_TOKENS, 3)] if fault.inject is in_one_lane else []
        answered, begun = system.ask(*others, QUESTION), time.perf_counter()
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
