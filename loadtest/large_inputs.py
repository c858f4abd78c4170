"""Streams of one tenant beside another that sends the largest inputs, asks for the largest replies,
or sends products of fields: `python -m loadtest.large_inputs --help`.

A real system with the default model serves some streams; the times between their chunks are noted
undisturbed, and then beside one client of another tenant for each kind of body, sent again and
again.  The same beside a tiny random model with a context of 131,072.  Told are the longest gap
within a stream, the chunks per second, the sessions that were lost, and how long the gateway's
event loop and the worker computed and waited for a processor: what streams lose to the latter, no
gateway can mend; nor what they lose to other programs, of which the clients here are a part.  A
stream's first piece is told of by itself: it waits for the steps that were sent before it came,
which are longer where nobody else has a stream.

Products of fields (crossed_inputs.py) are sent once each, to a server with several models.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import gguf
import msgspec

from loadtest import crossed_inputs
from loadtest.adversary.__main__ import LOST
from loadtest.report import (
    Document,
    Flags,
    Measurement,
    distribution,
    machine_line,
    sections,
    table,
)
from loadtest.sent_once import repeated, sender
from penstock.process.machine import version_of
from penstock.request.api_keys import entry, new_key
from penstock.version import __version__
from penstock_kernels.cpu.library import instruction_set
from testing.serving import Server
from testing.streams.reading import connected
from testing.streams.timed import Streams, Tally, beside, prompt_ids
from testing.tiny_models import write_gguf

Body = dict[str, object]


def _chat(content: str = "hi", **more: object) -> tuple[str, Body]:
    message = {"role": "user", "content": content}
    return "/v1/chat/completions", {"messages": [message], "max_tokens": 1, **more}


def _kinds(context: int) -> dict[str, tuple[str, Body]]:
    """Path and body by name."""
    edge, long = 64 * context, min(7000, context - 8)
    return {
        "15 MB of < in chat_template_kwargs": _chat(chat_template_kwargs={"x": "<" * 15_000_000}),
        "3 MB of < in chat_template_kwargs": _chat(chat_template_kwargs={"x": "<" * 3_000_000}),
        "< in chat_template_kwargs, at the bound": _chat(
            chat_template_kwargs={"x": "<" * (edge - 1000)}
        ),
        "3 MB of < in documents": _chat(documents=[{"text": "<" * 3_000_000}]),
        "500,000 < in messages": _chat("<" * 500_000),
        "510 kB prompt": ("/v1/completions", {"prompt": "some x1 " * 63_750, "max_tokens": 1}),
        "prompt at 64 characters a token": (
            "/v1/completions",
            {"prompt": ("some x1 " * (edge // 8 + 1))[:edge], "max_tokens": 1},
        ),
        "510 kB prompt, cut": (
            "/v1/completions",
            {"prompt": "some x1 " * 63_750, "max_tokens": 1, "truncate_prompt_tokens": 16},
        ),
        "20 log-probabilities of a long prompt": (
            "/v1/completions",
            {"prompt": prompt_ids(long, 1), "max_tokens": 1, "prompt_logprobs": 20},
        ),
        "64 answers with 20 log-probabilities": _chat(
            max_tokens=100, n=64, logprobs=True, top_logprobs=20, ignore_eos=True
        ),
        "ids to text": ("/detokenize", {"tokens": prompt_ids(260_000, 1)}),
    }


CALM, LONGEST_CALM = 40, 300.0
"""Pieces of a stream after which it runs again, and seconds in which they should have come."""
LONG_CONTEXT = 131_072
LONG_KINDS = ("bound", "510 kB", "64 characters")
"""What is in the names of kinds that are tried with it."""


def _with_long_context(folder: Path) -> str:
    """A model of one layer that says anything."""

    def adjust(writer: gguf.GGUFWriter) -> None:
        writer.add_context_length(LONG_CONTEXT)
        writer.add_chat_template("{{ messages[0].content }}{{ x }}")

    file = folder / "long.gguf"
    return str(write_gguf(file, adjust=adjust, without=("context_length",)))


def measure(options: Flags) -> Document:
    keys = {name: new_key() for name in ("alice", "mallory")}
    document: Document = {
        "serve": list(options.serve),
        "streams": options.streams,
        "patience": options.patience,
        "instruction_set": instruction_set(),
        "versions": {"penstock": __version__, **_versions("tokenizers", "msgspec", "uvloop")},
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.writelines(f"{entry(key, name=name, tenant=name)}\n" for name, key in keys.items())
        file.flush()
        if "repeated" in options.parts:
            with Server("--api-keys", file.name, *options.serve) as server:
                rows = asyncio.run(_run(server, keys, options, ("",)))
            with tempfile.TemporaryDirectory() as folder:
                model = _with_long_context(Path(folder))
                with Server("--api-keys", file.name, model) as server:
                    rows += asyncio.run(_run(server, keys, options, LONG_KINDS))
            document["rows"] = rows
        if "crossed" in options.parts:
            with tempfile.TemporaryDirectory() as folder:
                models = crossed_inputs.models_file(Path(folder))
                sent = crossed_inputs.bodies(Path(folder), options.products, options.only)
                with Server(
                    "--api-keys", file.name, "--models", str(models), *options.serve
                ) as server:
                    document["crossed"] = asyncio.run(_crossed(server, keys, options, sent))
    return document


def _versions(*names: str) -> dict[str, str]:
    return {name: version_of(name) or "none" for name in names}


async def _crossed(
    server: Server, keys: dict[str, str], options: Flags, sent: list[crossed_inputs.Body]
) -> list[Document]:
    model = crossed_inputs.DEFAULT
    async with (
        connected(server.url, options.streams, key=keys["alice"]) as client,
        sender(server.url, keys["mallory"], options.patience) as sending,
    ):
        body = {"prompt": "a b c d", "model": model}
        letters = (await client.post("/tokenize", json=body)).json()["tokens"]
        alice = Streams(client, lambda seed: {**_stream(seed, letters), "model": model})

        async def calm() -> float:
            """Seconds until the stream runs: what came before may have stopped it for minutes."""
            begun, alice.tally = time.monotonic(), Tally()
            while len(alice.tally.gaps) < CALM and time.monotonic() - begun < LONGEST_CALM:
                await asyncio.sleep(0.1)
            return time.monotonic() - begun

        async def heard(work: Callable[[], Awaitable[Document]]) -> Document:
            lost, before = _lost(server.log), _scheduled(server)
            alice.tally = Tally()
            done = await work()
            felt = _felt(alice)
            seconds = await calm()
            after = _scheduled(server)
            return {
                **done,
                **felt,
                "calm_seconds": seconds,
                "sessions_lost": _lost(server.log) - lost,
                "gateway_seconds": after["gateway_ran"] - before["gateway_ran"],
            }

        async with beside(alice.repeat() for _ in range(options.streams)):
            await asyncio.sleep(3.0)
            return await crossed_inputs.crossed(heard, sending, sent)


async def _run(
    server: Server, keys: dict[str, str], options: Flags, wanted: tuple[str, ...]
) -> list[Document]:
    """wanted: what is in the names of the kinds."""
    rows = []
    async with connected(server.url, options.streams, key=keys["alice"]) as client:
        models = (await client.get("/v1/models")).raise_for_status().json()
        context = int(models["data"][0]["max_model_len"])
        letters = (await client.post("/tokenize", json={"prompt": "a b c d"})).json()["tokens"]
        alice = Streams(client, lambda seed: _stream(seed, letters))
        async with beside(alice.repeat() for _ in range(options.streams)):
            await asyncio.sleep(3.0)
            rows.append(await _heard(alice, "nothing", options.seconds, server))
            for name, (path, body) in _kinds(context).items():
                if not any(part in name for part in wanted):
                    continue
                content = msgspec.json.encode(body)
                async with (
                    sender(server.url, keys["mallory"], 60.0) as mallory,
                    repeated(mallory, path, content) as answers,
                ):
                    row = await _heard(alice, name, options.seconds, server)
                counts = ", ".join(f"{n} x {s}" for s, n in sorted(answers.items()))
                rows.append({**row, "answers": counts})
                await asyncio.sleep(1.0)
            alice.tally = Tally()
    return [{"context": context, **row} for row in rows]


def _stream(seed: int, letters: list[int]) -> Body:
    """A body whose ids both models have; what is said is letters, whatever the model."""
    prompt = [20 + token % 400 for token in prompt_ids(40, seed)]
    return {"prompt": prompt, "max_tokens": 128, "allowed_token_ids": letters}


async def _heard(alice: Streams, name: str, seconds: float, server: Server) -> Document:
    lost, scheduled = _lost(server.log), _scheduled(server)
    alice.tally = Tally()
    await asyncio.sleep(seconds)
    felt = _felt(alice)
    after = _scheduled(server)
    shares = {key: 1000 * (after[key] - scheduled[key]) / seconds for key in after}
    return {
        "kind": name,
        "per_second": len(alice.tally.gaps) / seconds,
        **felt,
        "sessions_lost": _lost(server.log) - lost,
        "answers": "",
        **shares,
    }


def _felt(alice: Streams) -> Document:
    """Milliseconds between pieces since the tally was new, and until a first one at the latest."""
    tally = alice.tally
    # What is still open at the end is a gap too, or a stream that stands still would look fine.
    now = time.monotonic()
    for seed, since in alice.since.items():
        (tally.firsts if seed in alice.silent else tally.gaps).append(now - since)
    gaps, firsts = distribution(tally.gaps, 1000), distribution(tally.firsts, 1000)
    return {
        "p50_ms": gaps["p50"],
        "p99_ms": gaps["p99"],
        "longest_ms": gaps["max"],
        "first_ms": firsts["max"],
    }


def _scheduled(server: Server) -> dict[str, float]:
    """Seconds that the main threads of gateway and worker have computed, and have waited for a
    processor while they could have."""
    found = dict[str, float]()
    processes = server.processes()
    for name in ("gateway", "worker"):
        # Of several models the first one's, which serves the streams.
        title = min(title for title in processes if title.startswith(name))
        ran, waited, _ = Path(f"/proc/{processes[title]}/schedstat").read_text().split()
        found |= {f"{name}_ran": int(ran) / 1e9, f"{name}_waited": int(waited) / 1e9}
    served = sum(_computed(Path(f"/proc/{process}/stat")) for process in processes.values())
    return {**found, "others_ran": _computed(Path("/proc/stat")) - served}


def _computed(file: Path) -> float:
    """Seconds of processors that one process has had, or the whole machine."""
    words = file.read_text().rpartition(")")[2].split()
    # Of the machine: user, nice and system, then after idle and waiting those of interrupts.
    ticks = [*words[1:4], *words[6:8]] if words[0] == "cpu" else words[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _lost(log: Path) -> int:
    text = log.read_text(errors="replace")
    return sum(text.count(words) for words in LOST)


COLUMNS = {
    "context": "{context:,}",
    "beside": "{kind}",
    "chunks/s": "{per_second:,.0f}",
    "p50, ms": "{p50_ms:,.1f}",
    "p99, ms": "{p99_ms:,.1f}",
    "longest, ms": "{longest_ms:,.0f}",
    "first piece at the latest, ms": "{first_ms:,.0f}",
    "sessions lost": "{sessions_lost}",
    "gateway ran / waited, ms/s": "{gateway_ran:.0f} / {gateway_waited:.0f}",
    "worker ran / waited, ms/s": "{worker_ran:.0f} / {worker_waited:.0f}",
    "others ran, ms/s": "{others_ran:.0f}",
    "answers": "{answers}",
}


def markdown(document: Document) -> str:
    machine = machine_line(document)
    if "versions" in document:
        versions = (f"{name} {number}" for name, number in document["versions"].items())
        machine += f", {document['instruction_set']}; {', '.join(versions)}"
    repeated, crossed = document.get("rows"), document.get("crossed")
    return sections(
        (
            machine,
            f"{document['streams']} streams of one tenant, beside one client of another:"
            if repeated
            else "",
            table(COLUMNS, repeated) if repeated else "",
            "The same beside products of fields, each sent once:" if crossed else "",
            crossed_inputs.page(crossed, document["patience"]) if crossed else "",
        )
    )


COMMAND = Measurement(
    "large_inputs",
    __doc__,
    measure,
    markdown,
    {
        "--seconds": (6.0, "beside each kind"),
        "--streams": (1, "ordinary ones at a time"),
        "--parts": {
            "nargs": "+",
            "choices": ("repeated", "crossed"),
            "default": ["repeated", "crossed"],
            "help": "what is sent: kinds again and again, products of fields once",
        },
        "--products": (51, "of fields, the dearest"),
        "--only": {"nargs": "+", "default": [], "help": "parts of the names of the products"},
        "--patience": (30.0, "seconds until a product is given up that isn't answered"),
        "serve": {"nargs": "*", "help": "arguments for penstock serve, after --"},
    },
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
