"""The same questions about the same pictures to Penstock, transformers and llama.cpp's server.

Each has the machine to itself, and they take turns for some rounds. Pictures come one at a time,
each another one, and then all at once, a few of them distinct. An answer is one token, whose time
is that of its end.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loadtest.peers.children import answer_of, llamacpp_server
from loadtest.peers.servers import installed, version_in
from loadtest.pictures.models import as_gguf
from loadtest.pictures.served import FLAGS, QUESTION, Load, body, png, wait_of
from loadtest.report import say
from penstock.process.machine import usable_cores, version_of
from testing.serving import Server
from testing.streams.reading import connected

ALONE = 6
"""Pictures that come one at a time."""
HERE = Path(__file__).parent

Waits = dict[str, Any]
"""`alone` and `together`: seconds to the first token of each request."""


def one_round(model: Path, load: Load) -> list[Waits]:
    """Every system once. Raises SetupError without llama.cpp's server."""
    python, threads = installed("xllamacpp", "python"), max(int(usable_cores()), 1)
    with tempfile.TemporaryDirectory() as folder:
        files = as_gguf(model, Path(folder))
        say("penstock")
        with Server(str(model), *FLAGS) as server:
            ours = asyncio.run(_asked(server.url, load))
        say("llama.cpp")
        with llamacpp_server(python, threads, files.text, files.mmproj) as url:
            theirs = asyncio.run(_asked(url, load))
        say("transformers")
        others = _transformers(model, Path(folder), threads, load)
    version = version_in("xllamacpp", "xllamacpp").split()[-1]
    return [
        {"name": f"penstock {version_of('penstock')}", **ours},
        {"name": f"llama.cpp's server (xllamacpp {version})", **theirs},
        {"name": f"transformers {version_of('transformers')}, float32", **others},
    ]


def numbers(load: Load) -> tuple[list[int], list[int]]:
    """Of the pictures that come one at a time, and of those that come at once."""
    together = [2 * ALONE + number % load.distinct for number in range(load.requests)]
    return list(range(1, 1 + ALONE)), together


async def _asked(url: str, load: Load) -> Waits:
    alone, together = numbers(load)
    async with connected(url, load.requests) as client:
        await wait_of(client, body(0, 1))
        waits = [await wait_of(client, body(each, 1)) for each in alone]
        bodies = [body(each, 1) for each in together]
        begun = time.perf_counter()
        crowded = await asyncio.gather(*(wait_of(client, each) for each in bodies))
        seconds = time.perf_counter() - begun
    return {"alone": waits, "together": list(crowded), "seconds": seconds}


def _transformers(model: Path, folder: Path, threads: int, load: Load) -> Waits:
    """In a process of its own. Pictures that come at once are answered in turn."""
    alone, together = numbers(load)
    for number in {0, *alone, *together}:
        (folder / f"{number}.png").write_bytes(png(number))
    asked = {"question": QUESTION, "alone": alone, "together": together, "threads": threads}
    command = [sys.executable, HERE / "transformers_peer.py", model, folder]
    found: Waits = answer_of("transformers", command, asked, 600)
    return found
