"""How long streams wait between two tokens while long prompts arrive: prompts apart, and not.

    python -m loadtest.prefill_apart                # two minutes
    python -m loadtest.prefill_apart --only apart --seconds 20

The same cores serve both ways: one engine core that computes prompts in chunks, and two, one of
them for prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from typing import Any

from loadtest.report import Document, Flags, Measurement, distribution, machine_line, say, table
from loadtest.streaming import Streams, Tally, beside, listen, prompt_ids
from testing.serving import Server, wait_until
from testing.streams.reading import connected

STREAMS = 16
ANSWER = 4
LONG_ANSWER = 2000
SERVE = ("--max-model-len", "8192", "--max-num-seqs", "32")
WAYS = {
    "one engine core, chunks of prompts": SERVE,
    "one engine core, chunks of 128 tokens": (*SERVE, "--max-num-batched-tokens", "128"),
    "apart": (*SERVE, "--data-parallel-size", "2", "--kv-roles", "prefill,decode"),
}
COLUMNS = {
    "ms between two tokens of a stream": "{name}",
    "gaps": "{count}",
    "p50": "{p50:.0f}",
    "p90": "{p90:.0f}",
    "p99": "{p99:.0f}",
    "max": "{max:.0f}",
}
PROMPTS = {
    "s to the first token of a long prompt": "{name}",
    "prompts": "{count}",
    "p50": "{p50:.1f}",
    "max": "{max:.1f}",
    "tokens per second of all streams": "{rate:.0f}",
}


def measure(flags: Flags) -> Document:
    found: dict[str, Any] = {}
    for name, serve in WAYS.items():
        if not flags.only or name in flags.only.split(";"):
            gaps, firsts = served(serve, flags.seconds, flags.tokens)
            # Of thousands of gaps: what a reader asks of them.
            found[name] = {"gaps": distribution(gaps, 1000), "firsts": firsts}
            say(f"{name}: {found[name]}")
    return {"serve": WAYS, "seconds": flags.seconds, "tokens": flags.tokens, "found": found}


def served(serve: tuple[str, ...], seconds: float, tokens: int) -> tuple[list[float], list[float]]:
    """As `waits_of`, of a server with these flags."""
    count = 2 if "--kv-roles" in serve else 1
    with Server(*serve) as server:

        def ready() -> bool:
            engines = server.get("/status")[1]["engines"]
            return sum(each["ready"] for each in engines) == count

        wait_until(ready)
        return asyncio.run(waits_of(server.url, seconds, tokens))


async def waits_of(url: str, seconds: float, tokens: int) -> tuple[list[float], list[float]]:
    """Seconds between tokens of streams, and to the first token of long prompts that come one by
    one."""
    firsts: list[float] = []
    async with connected(url, STREAMS) as client, connected(url, 1) as other:
        streams = Streams(
            client, lambda seed: {"prompt": prompt_ids(60, seed), "max_tokens": LONG_ANSWER}
        )
        async with beside(streams.repeat() for _ in range(STREAMS)):
            while len(streams.tally.gaps) < 20 * STREAMS:  # All of them run.
                await asyncio.sleep(0.05)
            tally = streams.tally = Tally()
            until = time.perf_counter() + seconds
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + seconds):
                    for salt in itertools.count():
                        body = {"prompt": prompt_ids(tokens, 50_000 + salt), "max_tokens": ANSWER}
                        firsts.append((await listen(other, body)).first)
            await asyncio.sleep(max(0.0, until - time.perf_counter()))
            return list(tally.gaps), firsts


def markdown(document: Document) -> str:
    found, seconds = document["found"].items(), document["seconds"]
    rows = [{"name": name, **each["gaps"]} for name, each in found]
    prompts = [
        {"name": name, **distribution(each["firsts"]), "rate": each["gaps"]["count"] / seconds}
        for name, each in found
    ]
    return (
        f"{machine_line(document)}\n\n{STREAMS} streams for {seconds:g} s, while prompts of"
        f" {document['tokens']:,} tokens come one after the other.\n\n{table(COLUMNS, rows)}\n\n"
        f"{table(PROMPTS, prompts)}\n\n"
        "Where no prompt is counted, none was answered in that time.\n"
    )


FLAGS = {
    "--seconds": (30.0, "of each way"),
    "--tokens": (7_900, "of a long prompt"),
    "--only": ("", f"of the ways, with semicolons: {'; '.join(WAYS)}"),
}
COMMAND = Measurement("prefill_apart", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
