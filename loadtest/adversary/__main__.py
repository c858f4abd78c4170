"""Ordinary streams of one tenant beside another that asks for all that is allowed.

    python -m loadtest.adversary                          # 1 minute undisturbed, 10 minutes beside
    python -m loadtest.adversary --seconds 60 --quiet-seconds 20 --output FOLDER
    python -m loadtest.adversary -- --max-model-len 2048  # with other flags of `penstock serve`

Exit code 1 where alice waited more than three times as long between two pieces (p99), was refused,
or a session was lost, a process restarted or grew.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from loadtest.report import Document, Flags, Measurement, distribution, machine_line
from loadtest.report.memory import Memory, draw, growth_table
from loadtest.report.table import listed, sections, table, verdict
from penstock.request.api_keys import entry, new_key
from penstock_bench.load.report import markdown_table
from testing.serving import Server
from testing.streams.reading import connected
from testing.streams.timed import Streams, Tally, beside, prompt_ids

SERVE = ("--scheduling-policy", "fair")
SEED = 1
"""The seed of the adversary's requests."""
LOST = ("session with the engine core ended", "session with the engine ended")
"""What a gateway and a worker say of a session that is over."""
ALLOWED_RATIO = 3.0
ALLOWED_GROWTH = 0.1
"""The share by which a process's memory may grow, from the first quarter beside the adversary to
the last."""


Answers = dict[str, dict[str, int]]


def measure(options: Flags) -> Document:
    """Figures, and the samples of memory that they are made of."""
    keys = {name: new_key() for name in ("alice", "mallory")}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.writelines(f"{entry(key, name=name, tenant=name)}\n" for name, key in keys.items())
        file.flush()
        with Server(*SERVE, "--api-keys", file.name, *options.serve) as server:
            alone, disturbed, answers, memory = asyncio.run(run(server, keys, options))
            lost = sessions_lost(server.log)
    quiet, noisy = summary(alone), summary(disturbed)
    figures = {
        "seconds": options.seconds,
        "quiet_seconds": options.quiet_seconds,
        "streams": options.streams,
        "at_a_time": options.at_a_time,
        "seed": SEED,
        "quiet": quiet,
        "beside": noisy,
        "ratio_p99": noisy["gap_p99_s"] / quiet["gap_p99_s"],
        "sessions_lost": len(lost),
        "lost": lost[:20],
        "restarts": memory.restarts,
        "answers": answers,
        "memory": memory.growths(options.quiet_seconds),
    }
    serve = [*SERVE, *options.serve]
    return {"serve": serve, "figures": figures, "samples": memory.samples()}


async def run(
    server: Server, keys: dict[str, str], options: Flags
) -> tuple[Tally, Tally, Answers, Memory]:
    """What alice heard alone and beside mallory, the answers that mallory had, and the memory."""
    memory = Memory()
    whole = options.quiet_seconds + options.seconds
    async with connected(server.url, options.streams, key=keys["alice"]) as client:
        orders = {
            "url": server.url,
            "key": keys["mallory"],
            "context": await _context(client),
            "at_a_time": options.at_a_time,
            "seconds": options.seconds,
            "seed": SEED,
        }
        alice = Streams(client, lambda seed: {"prompt": prompt_ids(40, seed), "max_tokens": 128})
        async with beside(alice.repeat() for _ in range(options.streams)):
            await _all_heard(alice, options.streams)
            watching = asyncio.create_task(memory.watch(server.processes, whole))
            quiet = alice.tally = Tally()
            await asyncio.sleep(options.quiet_seconds)
            noisy = alice.tally = Tally()
            answers = await asyncio.to_thread(_mallory, orders)
            now = time.monotonic()
            noisy.gaps.append(now - min(alice.since.values(), default=now))
            alice.tally = Tally()  # What breaks now was cut by us.
            await watching
    return quiet, noisy, answers, memory


async def _context(client: httpx.AsyncClient) -> int:
    """Tokens that the model may have, in and out."""
    answer = (await client.get("/v1/models")).raise_for_status()
    return int(answer.json()["data"][0]["max_model_len"])


async def _all_heard(alice: Streams, streams: int) -> None:
    """Waits until each stream has begun, so that no figure is one of warming up."""
    while len(alice.tally.firsts) < streams:
        if alice.tally.problems:
            raise RuntimeError(f"alice is refused by herself: {alice.tally.problems}")
        await asyncio.sleep(0.05)


def _mallory(orders: dict[str, Any]) -> Answers:
    """Runs mallory in a process of her own: making a body of a megabyte would keep alice's
    reader."""
    command = [sys.executable, "-m", "loadtest.adversary.mallory", json.dumps(orders)]
    told = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return dict(json.loads(told))


def summary(heard: Tally) -> Document:
    gaps, firsts = distribution(heard.gaps), distribution(heard.firsts)
    return {
        "pieces": gaps["count"],
        "gap_p50_s": gaps["p50"],
        "gap_p99_s": gaps["p99"],
        "longest_gap_s": gaps["max"],
        "first_p50_s": firsts["p50"],
        "first_p99_s": firsts["p99"],
        **{name: getattr(heard, name) for name in ("whole", "refused", "broken", "problems")},
    }


def sessions_lost(log: Path) -> list[str]:
    """The lines of the server's log that tell of one."""
    lines = log.read_text(errors="replace").splitlines()
    return [line for line in lines if any(words in line for words in LOST)]


def faults(figures: dict[str, Any]) -> list[str]:
    """What is not as it should be, in words."""
    ratio, beside = figures["ratio_p99"], figures["beside"]
    lost, restarts = figures["sessions_lost"], figures["restarts"]
    checks = [
        (ratio <= ALLOWED_RATIO, f"p99 between pieces is {ratio:.2f} times that alone"),
        (beside["whole"] > 0, "no stream of alice's came to its end"),
        (not beside["refused"], f"{beside['refused']} of alice's streams refused"),
        (not beside["broken"], f"{beside['broken']} of alice's streams broken"),
        (not lost, f"{lost} sessions lost"),
        (not restarts, f"{restarts} processes restarted"),
    ]
    for name, memory in figures["memory"].items():
        growth = memory["growth"]
        checks.append((growth <= ALLOWED_GROWTH, f"{name} grew by {100 * growth:.1f} %"))
    return [fault for holds, fault in checks if not holds]


def markdown(document: Document) -> str:
    figures = document["figures"]
    words = (
        f"{figures['streams']} streams of alice's, {figures['quiet_seconds']:g} s alone and then "
        f"{figures['seconds']:g} s beside {figures['at_a_time']} requests at a time of mallory's "
        f"(seed {figures['seed']}): p99 between two pieces {figures['ratio_p99']:.2f} times that "
        f"alone, {ALLOWED_RATIO:g} allowed; {figures['sessions_lost']} sessions lost, "
        f"{figures['restarts']} processes restarted."
    )
    parts = [
        machine_line(document),
        words,
        verdict(faults(figures)),
        _streams(figures),
        growth_table(figures["memory"], "first quarter", "last quarter"),
        _answers(figures["answers"]),
        listed(figures["beside"]["problems"] + figures["lost"]),
    ]
    return sections(parts)


STREAMS = {
    "alice, ms": "{when}",
    "between pieces, p50": "{gap_p50:,.0f}",
    "p99": "{gap_p99:,.0f}",
    "longest": "{longest_gap:,.0f}",
    "to the first, p50": "{first_p50:,.0f}",
    "to the first, p99": "{first_p99:,.0f}",
    "whole": "{whole:,}",
    "refused": "{refused:,}",
    "broken": "{broken:,}",
}


def _streams(figures: dict[str, Any]) -> str:
    rows = []
    for when, name in (("alone", "quiet"), ("beside mallory", "beside")):
        found = figures[name]
        times = {key[:-2]: 1000 * s for key, s in found.items() if key.endswith("_s")}
        rows.append({"when": when, **found, **times})
    return table(STREAMS, rows)


def _answers(answers: dict[str, dict[str, int]]) -> str:
    """How many requests of every kind had which end; the most common ends first."""
    totals: Counter[str] = Counter()
    for each in answers.values():
        totals.update(each)
    ends = [end for end, _ in totals.most_common()]
    rows = [
        [kind, *(f"{each.get(end, 0):,}" for end in ends)]
        for kind, each in [*sorted(answers.items()), ("all", totals)]
    ]
    return markdown_table(["mallory's", *ends], rows)


COMMAND = Measurement(
    "adversary",
    __doc__,
    measure,
    markdown,
    {
        "--seconds": (600.0, "beside the adversary"),
        "--quiet-seconds": (60.0, "before them"),
        "--streams": (16, "ordinary ones at a time"),
        "--at-a-time": (24, "requests of the adversary"),
        "serve": {"nargs": "*", "help": "arguments for penstock serve, after --"},
    },
    draw=lambda path, found: draw(found["samples"], found["figures"]["quiet_seconds"], path),
    faults=lambda document: faults(document["figures"]),
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
