"""What the tier on disk saves a conversation that comes back after a restart.

    python -m loadtest.disk_kv                     # one round, a minute
    python -m loadtest.disk_kv --rounds 3 --output FOLDER

A prompt is computed, the server ends, another one begins, and the same prompt is asked for again.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from typing import Any

from loadtest.report import Document, Flags, Measurement, distribution, machine_line, say, table
from loadtest.streaming import listen, prompt_ids
from testing.serving import Server, wait_until
from testing.streams.reading import connected
from tests.metrics_page import PORTS, port_of, read_page

LENGTH = 8_000
BLOCK = 16
SERVE = ("--max-model-len", "8192", "--max-num-seqs", "16", *PORTS)
MOST_SHARE = 1 / 5
"""It promises: of the time that computing takes."""
COLUMNS = {
    f"ms to the first token behind {LENGTH:,} tokens": "{name}",
    "asked": "{count}",
    "p50": "{p50:.0f}",
    "max": "{max:.0f}",
}


def measure(flags: Flags) -> Document:
    rounds = [resumed(number) for number in range(flags.rounds)]
    share = statistics.median(each["read"] / each["computed"] for each in rounds)
    return {"serve": SERVE, "rounds": rounds, "share": share}


def faults(document: Document) -> bool:
    """Whether it doesn't keep what it promises, or says something else."""
    return document["share"] > MOST_SHARE or not all(each["same"] for each in document["rounds"])


def resumed(number: int) -> dict[str, Any]:
    """Seconds to the first token of a long prompt: computed, and read by the next server."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="disk-kv-") as folder:
        texts: list[str] = []
        for life in ("computed", "read"):
            with Server("--disk-kv-dir", folder, *SERVE) as server:
                heard = asyncio.run(asked(server.url, LENGTH, 100 + number))
                found[life] = heard[0]
                texts.append(heard[1])
                if life == "computed":
                    wait_for_writes(port_of(server, "worker 0"))
                else:
                    page = read_page(port_of(server, "engine"))
                    name = "penstock:disk_kv_blocks_total"
                    found["blocks"] = page.value(name, result="read")
        found["same"] = texts[0] == texts[1]
    say(f"{found}")
    return found


def wait_for_writes(url: str) -> None:
    """Until that worker has written the whole prompt."""
    name = "penstock:worker_disk_kv_blocks_total"
    wait_until(lambda: read_page(url).value(name, result="written") >= LENGTH // BLOCK)


async def asked(url: str, length: int, salt: int) -> tuple[float, str]:
    """Seconds to the first token, and what was said."""
    async with connected(url, 1) as client:
        await listen(client, {"prompt": prompt_ids(30, 1), "max_tokens": 2})
        body = {"prompt": prompt_ids(length, salt), "max_tokens": 8, "temperature": 0}
        heard = await listen(client, body)
    return heard.first, "".join(e["choices"][0]["text"] for e in heard.events if e["choices"])


def markdown(document: Document) -> str:
    rounds = document["rounds"]
    names = {"computed": "computed", "read": "read from disk by another server"}
    rows = [
        {"name": words, **distribution([each[name] for each in rounds], 1000)}
        for name, words in names.items()
    ]
    same = "the same" if all(each["same"] for each in rounds) else "DIFFERENT"
    return (
        f"{machine_line(document)}\n\n{table(COLUMNS, rows)}\n\n"
        f"Reading takes {document['share']:.3f} of computing (promised: {MOST_SHARE:g} at most), "
        f"{rounds[0]['blocks']:.0f} blocks; both answers are {same}.\n"
    )


FLAGS = {"--rounds": (1, "of a prompt that comes back")}
COMMAND = Measurement("disk_kv", __doc__, measure, markdown, FLAGS, faults=faults)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
