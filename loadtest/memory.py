"""What memory each process of `penstock serve` has: when it is ready, after one answer, while many
streams with long prompts run, and after them: `python -m loadtest.memory --model FILE.gguf`.

A page that several processes share counts for each with its part (PSS). Ready means that nothing
grows any more: what is loaded for later is there. Keys and values are kept for prompts that begin
alike, so what streams have computed stays, within `--kv-memory-gib`.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from deploy.local import answers, free_port, running, wait
from loadtest.report import Document, Flags, Measurement, machine_line, table
from penstock.prepare import load_manifest, prepare
from testing.processes import processor_seconds

STAGES = ("ready", "one answer", "most", "after")
MIB = 2**20
STEADY = 2 * MIB
"""Bytes by which a total may change between two looks that count as the same."""
LOOKS = 6
IDLE = 0.3
"""Seconds of processors between the first and the last look."""
PATIENCE = 120.0
"""Seconds for which totals are waited for that stay the same."""


def by_process(root: psutil.Process) -> dict[str, int]:
    """Bytes (PSS) of a server's processes by name; those of one name together."""
    found: dict[str, int] = {}
    for each in [root, *root.children(recursive=True)]:
        try:
            name = " ".join(each.cmdline()).removeprefix("penstock: ").strip()
            size = each.memory_full_info().pss
        except psutil.Error:
            continue  # It has just ended.
        found[name] = found.get(name, 0) + size
    return found


def settled(root: psutil.Process) -> dict[str, int]:
    """The first look whose total is that of those before it, each a second later, while hardly
    anything was computed; the last one where there is none in time."""
    looks: list[tuple[int, float]] = []
    end = time.monotonic() + PATIENCE
    while True:
        now = by_process(root)
        looks = [*looks, (sum(now.values()), processor_seconds(root.pid))][-LOOKS:]
        totals, seconds = zip(*looks, strict=True)
        steady = len(looks) == LOOKS and max(totals) - min(totals) <= STEADY
        if (steady and seconds[-1] - seconds[0] < IDLE) or time.monotonic() > end:
            return now
        time.sleep(1)


def measure(flags: Flags) -> Document:
    """All stages of one server."""
    prepared = load_manifest(prepare(flags.model))
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "penstock", "serve", flags.model, "--port", str(port)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with running([*command, *flags.serve], log, {}) as process:
            wait(lambda: answers(f"{url}/health/ready"), process, log, 300)
            root = psutil.Process(process.pid)

            stages = {"ready": settled(root)}
            asyncio.run(_streams(url, prepared.name, 1, 8, 16))
            stages["one answer"] = settled(root)
            stages["most"] = asyncio.run(_watched(root, url, prepared.name, flags))
            stages["after"] = settled(root)
    return {
        "model": prepared.name,
        "serve": flags.serve,
        "streams": flags.streams,
        "words": flags.words,
        "stages": stages,
    }


async def _watched(root: psutil.Process, url: str, model: str, flags: Flags) -> dict[str, int]:
    """The look with the largest total while streams run."""
    work = asyncio.create_task(_streams(url, model, flags.streams, flags.words, flags.limit))
    most: dict[str, int] = {}
    while not work.done():
        now = await asyncio.to_thread(by_process, root)
        most = max(most, now, key=lambda each: sum(each.values()))
        await asyncio.wait([work], timeout=0.5)
    await work
    return most


async def _streams(url: str, model: str, streams: int, words: int, limit: int) -> None:
    """Answers at the same time to prompts that have nothing in common."""
    draw = random.Random(streams)
    prompts = [" ".join(str(draw.randrange(1000)) for _ in range(words)) for _ in range(streams)]
    async with httpx.AsyncClient(base_url=url, timeout=900) as client:

        async def one(prompt: str) -> None:
            body = {"model": model, "prompt": prompt, "max_tokens": limit, "ignore_eos": True}
            answer = await client.post("/v1/completions", json=body)
            answer.raise_for_status()

        await asyncio.gather(*map(one, prompts))


def markdown(document: Document) -> str:
    """MiB of each process at each stage."""
    stages = document["stages"]
    names = dict.fromkeys(name for stage in stages.values() for name in stage)
    rows = [
        {"name": name, **{stage: _mib(each.get(name, 0)) for stage, each in stages.items()}}
        for name in names
    ]
    rows.append(
        {"name": "all", **{stage: _mib(sum(each.values())) for stage, each in stages.items()}}
    )
    columns = {"MiB (PSS)": "{name}", **{stage: f"{{{stage}}}" for stage in STAGES}}
    flags = " ".join(["", *document["serve"]])
    return (
        f"{machine_line(document)}\n\n`penstock serve {document['model']}{flags}`; most and after:"
        f" {document['streams']} streams at the same time, prompts of {document['words']} numbers."
        f"\n\n{table(columns, rows)}\n"
    )


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f}"


FLAGS = {
    "--model": ("smollm2-135m", "that is served"),
    "--streams": (16, "at the same time"),
    "--words": (400, "numbers of each prompt"),
    "--limit": (32, "tokens of each answer"),
    "--serve": {"nargs": "*", "default": [], "metavar": "FLAG", "help": "for `penstock serve`"},
}
COMMAND = Measurement("memory", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
