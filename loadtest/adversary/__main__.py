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
from loadtest.adversary.report import chart, markdown, passed, percentile
from loadtest.adversary.watching import Memory, sessions_lost
from loadtest.chaos.served import Served
from loadtest.report.facts import now, run_facts
from penstock.api_keys import entry, new_key

RESULTS = Path(__file__).resolve().parents[1] / "results"
SERVE = ("--scheduling-policy", "fair")
ALICE_TOKENS = 128


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.adversary", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="beside the adversary")
    parser.add_argument("--quiet-seconds", type=float, default=60.0, help="before them")
    parser.add_argument("--streams", type=int, default=16, help="ordinary ones at a time")
    parser.add_argument("--at-a-time", type=int, default=24, help="requests of the adversary")
    parser.add_argument("--seed", type=int, default=1, help="of the adversary's requests")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("serve", nargs="*", help="arguments for penstock serve, after --")
    options = parser.parse_args(arguments)
    started = now()
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        figures, samples = measure(Path(folder), options)
    facts = run_facts("-m loadtest.adversary", sys.argv[1:], started)
    options.output.mkdir(parents=True, exist_ok=True)
    document = {**facts, "serve": [*SERVE, *options.serve], "figures": figures, "samples": samples}
    (options.output / "adversary.json").write_text(json.dumps(document, indent=1) + "\n")
    (options.output / "adversary.md").write_text(markdown(facts, figures))
    chart(figures, samples, options.output / "adversary.png")
    print(markdown(facts, figures))
    return 0 if passed(figures) else 1


def measure(folder: Path, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures, and the samples of memory that they are made of."""
    keys = {name: new_key() for name in ("alice", "mallory")}
    file, log = folder / "keys.yaml", folder / "serve.log"
    lines = [entry(key, name=name, tenant=name) for name, key in keys.items()]
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o600)
    with Served(*SERVE, "--api-keys", str(file), *options.serve, log=log) as served:
        quiet, beside, answers, memory = asyncio.run(run(served, keys, options))
        lost = sessions_lost(log)
    figures: dict[str, Any] = {
        "seconds": options.seconds,
        "quiet_seconds": options.quiet_seconds,
        "streams": options.streams,
        "at_a_time": options.at_a_time,
        "seed": options.seed,
        "quiet": summary(quiet),
        "beside": summary(beside),
        "ratio_p99": percentile(beside.gaps, 0.99) / percentile(quiet.gaps, 0.99),
        "sessions_lost": len(lost),
        "lost": lost[:20],
        "restarts": memory.restarts,
        "answers": answers,
        "memory": {},
    }
    for name in memory.rss:
        drift = memory.drift(name, options.quiet_seconds)
        if drift is not None:
            early, late = drift
            figures["memory"][name] = {
                "early_mib": early,
                "late_mib": late,
                "growth": late / early - 1,
            }
    return figures, {"at": memory.at, "rss_mib": memory.rss}


async def run(
    served: Served, keys: dict[str, str], options: argparse.Namespace
) -> tuple[Heard, Heard, dict[str, dict[str, int]], Memory]:
    """What alice heard alone and beside mallory, the answers that mallory had, and the memory."""
    context = await _context(served.url, keys["alice"])
    memory = Memory()
    whole = options.quiet_seconds + options.seconds
    async with Alice(served.url, keys["alice"], options.streams, ALICE_TOKENS) as alice:
        await _all_heard(alice, options.streams)
        watching = asyncio.create_task(memory.watch(served.processes, whole))
        quiet = alice.heard = Heard()
        await asyncio.sleep(options.quiet_seconds)
        beside = alice.heard = Heard()
        answers = await _mallory(served.url, keys["mallory"], context, options)
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
    return {
        "pieces": len(heard.gaps),
        "gap_p50_s": percentile(heard.gaps, 0.5),
        "gap_p99_s": percentile(heard.gaps, 0.99),
        "longest_gap_s": max(heard.gaps, default=0.0),
        "first_p50_s": percentile(heard.firsts, 0.5),
        "first_p99_s": percentile(heard.firsts, 0.99),
        "whole": heard.whole,
        "refused": heard.refused,
        "broken": heard.broken,
        "problems": heard.problems,
    }


if __name__ == "__main__":
    sys.exit(main())
