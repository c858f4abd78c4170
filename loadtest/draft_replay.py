"""What drafts gain and cost, told from answers that a model gave: the same on a machine that does
other things meanwhile.

    python -m loadtest.draft_replay                   # some minutes
    python -m loadtest.draft_replay --curves a.json,b.json     # steps as measured before

A server without drafts answers requests of each kind. A real engine core, with a worker's real
steps, slots and proposers, then tells these answers again, with drafts and without. What a step of
so many rows takes is measured by itself (`python -m loadtest.drafting.curve MODEL THREADS`), and is
what time is made of: it has no noise. JSON is told without its grammar, so what that would force is
looked up, too. What drafting costs beside the model's rows is processor time
of the same run, of which the shortest of some counts.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from loadtest.drafting.curve import Curve
from loadtest.drafting.replay import Text, Told, tell
from loadtest.drafting.streams import LIMIT, Streams
from loadtest.report import Document, Flags, Measurement, SetupError, machine_line, say, table
from penstock_worker.machine.cpu import usable_threads
from testing.serving import Server

REQUESTS = ("copy", "edit", "code", "JSON", "chat", "random")
STREAMS = (1, 4, 16, 64)
ISAS = ("avx512vnni", "avx2")
"""Instruction sets of which curves are measured."""
LEAST = 0.98
COLUMNS = {
    "steps of": "{isa}",
    "requests": "{name}",
    "streams": "{streams}",
    "drafted": "{drafted:.3f}",
    "kept": "{kept:.3f}",
    "by steps": "{by_steps:.3f}",
    "beside, µs a step": "{beside:.0f}",
    "times as fast": "{faster:.3f}",
}


@dataclass(frozen=True)
class Cell:
    """What is told: texts of one kind, so many at a time."""

    name: str
    streams: int


def measure(flags: Flags) -> Document:
    curves = list(_curves(flags))
    say("answers")
    texts = _answers(flags)
    rows = []
    for name, own in texts.items():
        for streams in STREAMS:
            for isa, seconds in curves:
                cell = Cell(name, streams)
                rows.append(row(cell, isa, own[: max(flags.least, streams)], seconds, flags))
                say(f"{name}, {streams}, {isa}: {rows[-1]['faster']:.3f}")
    return {
        "model": flags.model,
        "method": flags.method,
        "tokens": flags.tokens,
        "curves": [{"isa": isa, "seconds": seconds} for isa, seconds in curves],
        "rows": rows,
    }


def row(
    cell: Cell, isa: str, texts: list[Text], seconds: dict[int, float], flags: Flags
) -> dict[str, Any]:
    """The same texts without drafts and with them, some times in turn: what is told doesn't differ,
    and processor time is that of the fastest run."""
    curve = Curve(seconds)
    runs: dict[str, list[Told]] = {"off": [], flags.method: []}
    for _ in range(flags.rounds):
        for method, told in runs.items():
            told.append(tell(texts, cell.streams, method, curve))
    off, drafts = runs["off"][0], runs[flags.method][0]
    host = {method: min(each.host for each in told) for method, told in runs.items()}
    beside = max(0.0, host[flags.method] / drafts.steps - host["off"] / off.steps)
    return {
        "isa": isa,
        "name": cell.name,
        "streams": cell.streams,
        "drafted": drafts.drafted / drafts.tokens,
        "kept": drafts.kept / drafts.tokens,
        "by_steps": off.seconds / drafts.seconds,
        "beside": 1e6 * beside,
        "faster": off.seconds / (drafts.seconds + beside * drafts.steps),
    }


def _curves(flags: Flags) -> Iterator[tuple[str, dict[int, float]]]:
    """(instruction set, seconds by rows)."""
    for path in filter(None, flags.curves.split(",")):
        yield _curve(Path(path).read_text())
    if flags.curves:
        return
    threads = flags.threads or usable_threads()
    for isa in ISAS:
        say(f"steps {isa}")
        command = [sys.executable, "-m", "loadtest.drafting.curve", flags.model, str(threads)]
        # `env` passes on what this process has.
        chosen = ["env", f"PENSTOCK_CPU_ISA={isa}"]
        done = subprocess.run([*chosen, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SetupError(f"no curve was measured:\n{done.stderr[-2000:]}")
        yield _curve(done.stdout)


def _curve(text: str) -> tuple[str, dict[int, float]]:
    found = json.loads(text.splitlines()[-1])
    return found["isa"], {int(rows): seconds for rows, seconds in found["seconds"].items()}


def _answers(flags: Flags) -> dict[str, list[Text]]:
    """By the name of their requests; of `--answers`, if that file is there already."""
    path = Path(flags.answers) if flags.answers else None
    if path is not None and path.exists():
        return msgspec.json.decode(path.read_bytes(), type=dict[str, list[Text]])
    texts = asyncio.run(_texts(flags))
    if path is not None:
        path.write_bytes(msgspec.json.encode(texts))
    return texts


async def _texts(flags: Flags) -> dict[str, list[Text]]:
    count = max(flags.least, *STREAMS)
    arguments = ("--model", flags.model, "--max-model-len", "2048", "--max-num-seqs", "64")
    with Server(*arguments, "--speculative-config", "off") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=LIMIT) as client:
            return {
                name: await asyncio.gather(
                    *(_text(client, Streams(name, count, flags.tokens), at) for at in range(count))
                )
                for name in REQUESTS
            }


async def _text(client: httpx.AsyncClient, streams: Streams, stream: int) -> Text:
    """Of different lengths, so that they don't all end at once when they are told."""
    body = {**streams.body("replay", stream, 1), "return_token_ids": True}
    body["max_completion_tokens"] = streams.tokens - stream % (streams.tokens // 4 + 1)
    reply = await client.post("/v1/chat/completions", json=body)
    if reply.status_code != 200:
        raise RuntimeError(f"no answer: {reply.text}")
    found = reply.json()
    prediction = (
        await _tokens(client, body["prediction"]["content"]) if "prediction" in body else []
    )
    return Text(found["prompt_token_ids"], found["choices"][0]["token_ids"], prediction)


async def _tokens(client: httpx.AsyncClient, text: str) -> list[int]:
    reply = await client.post("/tokenize", json={"prompt": text, "add_special_tokens": False})
    reply.raise_for_status()
    ids: list[int] = reply.json()["tokens"]
    return ids


def short(document: Document) -> list[str]:
    """Where drafts cost more than they may."""
    return [
        f"{each['name']} at {each['streams']} streams, {each['isa']}: {each['faster']:.3f}"
        for each in document["rows"]
        if each["faster"] < LEAST
    ]


def markdown(document: Document) -> str:
    found = short(document)
    verdict = f"Below {LEAST}: {'; '.join(found)}." if found else f"Nothing is below {LEAST}."
    times = "\n".join(
        f"- {curve['isa']}: "
        + ", ".join(f"{rows}: {1000 * took:.1f}" for rows, took in curve["seconds"].items())
        for curve in document["curves"]
    )
    return (
        f"{machine_line(document)}\n\nAnswers of {document['model']} of at most"
        f" {document['tokens']} tokens, told again with `{document['method']}` and without drafts."
        " Drafted, kept: of all tokens. By steps: how many times as fast, by what steps take."
        " Beside: processor time of the engine core and of the worker, without the model, that a"
        " step takes more. Times as fast: with that, as if all of it came on top."
        f"\n\n{table(COLUMNS, document['rows'])}\n\n{verdict}\n\nMilliseconds of a step, by"
        f" rows:\n\n{times}\n"
    )


FLAGS = {
    "--model": ("smollm2-135m", ""),
    "--method": {"default": "suffix", "choices": ("suffix", "ngram")},
    "--tokens": (128, "of an answer, at most"),
    "--least": (16, "answers that are told of each kind at least"),
    "--rounds": (3, ""),
    "--threads": (0, "0: as many as the worker would take"),
    "--answers": ("", "file that answers are kept in, to be told once more"),
    "--curves": ("", "files with what loadtest.drafting.curve has written"),
}
COMMAND = Measurement(
    "draft_replay", __doc__, measure, markdown, FLAGS, faults=lambda found: bool(short(found))
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
