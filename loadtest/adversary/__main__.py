"""Ordinary streams of one tenant beside another that asks for all that is allowed.

    python -m loadtest.adversary                          # 1 minute undisturbed, 10 minutes beside
    python -m loadtest.adversary --seconds 60 --quiet-seconds 20 --output FOLDER
    python -m loadtest.adversary -- --max-model-len 2048  # with other flags of `penstock serve`

Exit code 1 where alice waited more than three times as long between two pieces (p99), was refused,
or a session was lost, a process restarted or grew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from typing import Any

import httpx

from loadtest.adversary.report import faults, markdown, sessions_lost
from loadtest.report.figures import distribution
from loadtest.report.files import Report, parser
from loadtest.report.memory import Memory, draw
from loadtest.streaming import Streams, Tally, beside, prompt_ids
from penstock.api_keys import entry, new_key
from testing.serving import Server
from testing.streams.reading import connected

PROGRAM = "-m loadtest.adversary"
SERVE = ("--scheduling-policy", "fair")
SEED = 1
"""Of the adversary's requests."""

Answers = dict[str, dict[str, int]]


def main(arguments: list[str] | None = None) -> int:
    command = parser(PROGRAM, __doc__.splitlines()[0])
    command.add_argument("--seconds", type=float, default=600.0, help="beside the adversary")
    command.add_argument("--quiet-seconds", type=float, default=60.0, help="before them")
    command.add_argument("--streams", type=int, default=16, help="ordinary ones at a time")
    command.add_argument("--at-a-time", type=int, default=24, help="requests of the adversary")
    command.add_argument("serve", nargs="*", help="arguments for penstock serve, after --")
    options = command.parse_args(arguments)
    report = Report("adversary", PROGRAM, options, arguments)
    figures, memory = measure(options)
    samples = {"at": memory.at, "rss_mib": memory.rss}
    report.finish(
        {"serve": [*SERVE, *options.serve], "figures": figures, "samples": samples},
        lambda facts: markdown(facts, figures),
        draw=lambda path: draw(memory, options.quiet_seconds, path),
    )
    return 1 if faults(figures) else 0


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], Memory]:
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
    return figures, memory


async def run(
    server: Server, keys: dict[str, str], options: argparse.Namespace
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
    """Until each stream has begun, so that no figure is one of warming up."""
    while len(alice.tally.firsts) < streams:
        if alice.tally.problems:
            raise RuntimeError(f"alice is refused by herself: {alice.tally.problems}")
        await asyncio.sleep(0.05)


def _mallory(orders: dict[str, Any]) -> Answers:
    """In a process of its own: making a body of a megabyte would keep alice's reader."""
    command = [sys.executable, "-m", "loadtest.adversary.mallory", json.dumps(orders)]
    told = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return dict(json.loads(told))


def summary(heard: Tally) -> dict[str, Any]:
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


if __name__ == "__main__":
    sys.exit(main())
