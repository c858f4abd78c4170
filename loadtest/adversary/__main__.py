"""Ordinary streams of one tenant beside another that asks for all that is allowed.

    python -m loadtest.adversary                          # 1 minute undisturbed, 10 minutes beside
    python -m loadtest.adversary --seconds 60 --quiet-seconds 20 --output /tmp/adversary
    python -m loadtest.adversary -- --max-model-len 2048  # with other flags of `penstock serve`

`alice` keeps 16 streams open; `mallory` sends random requests at the edge of every bound, hangs up,
reads slowly and asks for the same again. Exit code 1 where alice waited more than three times as
long between two pieces (p99), was refused, or a session was lost, a process restarted or grew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from loadtest.adversary.alice import Alice, Heard
from loadtest.adversary.report import markdown, passed, sessions_lost
from loadtest.report.figures import distribution, percentile
from loadtest.report.files import Report, parser
from loadtest.report.memory import Memory, draw
from penstock.api_keys import entry, new_key
from testing.serving import Server

PROGRAM = "-m loadtest.adversary"
SERVE = ("--scheduling-policy", "fair")
ALICE_TOKENS = 128


def main(arguments: list[str] | None = None) -> int:
    command = parser(PROGRAM, __doc__.splitlines()[0])
    command.add_argument("--seconds", type=float, default=600.0, help="beside the adversary")
    command.add_argument("--quiet-seconds", type=float, default=60.0, help="before them")
    command.add_argument("--streams", type=int, default=16, help="ordinary ones at a time")
    command.add_argument("--at-a-time", type=int, default=24, help="requests of the adversary")
    command.add_argument("--seed", type=int, default=1, help="of the adversary's requests")
    command.add_argument("serve", nargs="*", help="arguments for penstock serve, after --")
    options = command.parse_args(arguments)
    report = Report("adversary", PROGRAM, options, arguments)
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        figures, memory = measure(Path(folder) / "keys.yaml", options)
    samples = {"at": memory.at, "rss_mib": memory.rss}
    report.finish(
        {"serve": [*SERVE, *options.serve], "figures": figures, "samples": samples},
        lambda facts: markdown(facts, figures),
        draw=lambda path: draw(memory, options.quiet_seconds, path),
    )
    return 0 if passed(figures) else 1


def measure(file: Path, options: argparse.Namespace) -> tuple[dict[str, Any], Memory]:
    """Figures, and the samples of memory that they are made of. file: for the API keys."""
    keys = {name: new_key() for name in ("alice", "mallory")}
    lines = [entry(key, name=name, tenant=name) for name, key in keys.items()]
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o600)
    with Server(*SERVE, "--api-keys", str(file), *options.serve) as server:
        quiet, beside, answers, memory = asyncio.run(run(server, keys, options))
        lost = sessions_lost(server.log)
    figures = {
        name: getattr(options, name)
        for name in ("seconds", "quiet_seconds", "streams", "at_a_time", "seed")
    }
    ratio = percentile(beside.gaps, 0.99) / percentile(quiet.gaps, 0.99)
    figures |= {
        "quiet": summary(quiet),
        "beside": summary(beside),
        "ratio_p99": ratio,
        "sessions_lost": len(lost),
        "lost": lost[:20],
        "restarts": memory.restarts,
        "answers": answers,
        "memory": memory.growths(options.quiet_seconds),
    }
    return figures, memory


async def run(
    server: Server, keys: dict[str, str], options: argparse.Namespace
) -> tuple[Heard, Heard, dict[str, dict[str, int]], Memory]:
    """What alice heard alone and beside mallory, the answers that mallory had, and the memory."""
    context = await _context(server.url, keys["alice"])
    memory = Memory()
    whole = options.quiet_seconds + options.seconds
    async with Alice(server.url, keys["alice"], options.streams, ALICE_TOKENS) as alice:
        await _all_heard(alice, options.streams)
        watching = asyncio.create_task(memory.watch(server.processes, whole))
        quiet = alice.heard = Heard()
        await asyncio.sleep(options.quiet_seconds)
        beside = alice.heard = Heard()
        answers = await _mallory(server.url, keys["mallory"], context, options)
        beside.gaps.append(alice.longest_silence())
        alice.heard = Heard()  # What breaks now was cut by us.
        await watching
    return quiet, beside, answers, memory


async def _context(url: str, key: str) -> int:
    """Tokens that the model may have, in and out."""
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        answer = (await client.get("/v1/models")).raise_for_status()
        return int(answer.json()["data"][0]["max_model_len"])


async def _all_heard(alice: Alice, streams: int) -> None:
    """Until each stream has begun, so that no figure is one of warming up."""
    while len(alice.heard.firsts) < streams:
        if alice.heard.problems:
            raise RuntimeError(f"alice is refused by herself: {alice.heard.problems}")
        await asyncio.sleep(0.05)


async def _mallory(
    url: str, key: str, context: int, options: argparse.Namespace
) -> dict[str, dict[str, int]]:
    """In a process of its own: making a body of a megabyte would keep alice's reader."""
    command = [sys.executable, "-m", "loadtest.adversary.mallory", url, "--key", key]
    command += ["--context", str(context), "--seconds", str(options.seconds)]
    command += ["--at-a-time", str(options.at_a_time), "--seed", str(options.seed)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(f"mallory left with {process.returncode}")
    return dict(json.loads(told))


def summary(heard: Heard) -> dict[str, Any]:
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
