"""What drafted tokens gain, and whether they cost anything where there is nothing to gain.

    python -m loadtest.speculation                    # some half an hour
    python -m loadtest.speculation --rounds 1 --tokens 32 --streams 1,4 --output FOLDER

Two servers with the same model, one of which drafts: they answer the same requests in turn, while
the other one waits. All streams send at once, and again when their answer has ended; each request
is a new one, so that no output has been seen before. Answers must be equal, token by token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx

from loadtest.report.facts import machine_line
from loadtest.report.files import Document, Measurement, say
from loadtest.report.table import table
from testing.serving import Server

LIMIT = 600.0
NOISE = 0.98
"""Where drafts can't help, tokens may come so much more slowly at most."""
WANTED = {("copy", 1): 1.8, ("JSON", 1): 1.2}
WORDS = (
    *("river", "stone", "garden", "window", "market", "letter", "silver", "engine", "orchard"),
    *("harbour", "meadow", "lantern", "village", "bridge", "winter", "copper", "basket"),
    *("ladder", "mirror", "saddle", "thunder", "velvet", "walnut", "anchor", "barrel"),
)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "category": {"enum": ["household", "garden", "workshop", "kitchen"]},
        "price_in_euros": {"type": "integer"},
        "available_in_stores": {"type": "boolean"},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "category", "price_in_euros", "available_in_stores", "colours"],
    "additionalProperties": False,
}
COLUMNS = {
    "requests": "{name}",
    "streams": "{streams}",
    "tok/s without": "{without:.0f}",
    "tok/s with": "{with_drafts:.0f}",
    "ratio": "{ratio:.2f}",
    "lowest": "{lowest:.2f}",
    "highest": "{highest:.2f}",
}

Body = dict[str, Any]


def sentences(draws: random.Random, count: int) -> str:
    """Lines that nobody has read before."""
    return "".join(
        f"{at + 1}. The {draws.choice(WORDS)} of the {draws.choice(WORDS)} near the"
        f" {draws.choice(WORDS)} costs {draws.randrange(1000)} euros.\n"
        for at in range(count)
    )


def asked(words: str, *, whole: bool = True) -> Body:
    """`whole`: whether the answer is as long as it may be."""
    return {"messages": [{"role": "user", "content": words}], "ignore_eos": whole}


def copy(draws: random.Random) -> Body:
    return asked(f"Repeat this list word for word, and nothing else:\n{sentences(draws, 9)}")


def edit(draws: random.Random) -> Body:
    """The text is also what the output is predicted to be."""
    text = sentences(draws, 9)
    words = f"Write this list again with dollars instead of euros, and nothing else:\n{text}"
    return {**asked(words), "prediction": {"type": "content", "content": text}}


def code(draws: random.Random) -> Body:
    names = ", ".join(draws.sample(WORDS, 6))
    return asked(
        "Write a Python class with a field, a getter, a setter and a test for each of these names:"
        f" {names}."
    )


def as_json(draws: random.Random) -> Body:
    schema = {"type": "array", "items": SCHEMA, "minItems": 6}
    return {
        **asked(f"List six things to sell at a {draws.choice(WORDS)}, as JSON.", whole=False),
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "things", "schema": schema},
        },
    }


def chat(draws: random.Random) -> Body:
    one, other = draws.sample(WORDS, 2)
    return {**asked(f"Tell a story about a {one} and a {other}."), "temperature": 0.8}


def noise(draws: random.Random) -> Body:
    """Words without sense, and an output that is as good as random."""
    words = " ".join(draws.choice(WORDS) for _ in range(60))
    return {**asked(words), "temperature": 1.5}


WORKLOADS: dict[str, Callable[[random.Random], Body]] = {
    "copy": copy,
    "edit": edit,
    "code": code,
    "JSON": as_json,
    "chat": chat,
    "random": noise,
}


def measure(flags: argparse.Namespace) -> Document:
    common = ("--model", flags.model, "--max-model-len", "2048", "--max-num-seqs", "64")
    drafting = ("--speculative-config", flags.speculative_config)
    with (
        Server(*common, "--speculative-config", "off") as without,
        Server(*common, *drafting) as with_drafts,
    ):
        urls = (without.url, with_drafts.url)
        rows = [
            asyncio.run(_row(name, streams, urls, flags))
            for name in flags.workloads
            for streams in flags.streams
        ]
    return {"model": flags.model, "speculative_config": flags.speculative_config, "rows": rows}


async def _row(
    name: str, streams: int, urls: tuple[str, str], flags: argparse.Namespace
) -> dict[str, Any]:
    """Alternating: each round has both, and begins with the other one."""
    say(f"{name}, {streams} streams")
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(-1, flags.rounds):
        seeds = [f"{name} {number} {stream}" for stream in range(streams)]
        said: dict[int, list[Any]] = {}
        for which in (0, 1) if number % 2 else (1, 0):
            begun = time.perf_counter()
            tokens, said[which] = await _answers(urls[which], name, seeds, flags)
            if number >= 0:  # The first round warms up.
                rates[which].append(tokens / (time.perf_counter() - begun))
        if said[0] != said[1]:
            raise RuntimeError(f"{name}, {streams} streams: outputs differ with drafts")
    ratios = [mine / other for other, mine in zip(*rates, strict=True)]
    say(f"  {statistics.median(ratios):.2f} times as fast")
    return {
        "name": name,
        "streams": streams,
        "without": statistics.median(rates[0]),
        "with_drafts": statistics.median(rates[1]),
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "rates": rates,
    }


async def _answers(
    url: str, name: str, seeds: list[str], flags: argparse.Namespace
) -> tuple[int, list[Any]]:
    """Returns (tokens, what was said) of streams with `flags.each` requests one after another."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT, limits=limits) as client:

        async def stream(seed: str) -> list[tuple[int, str]]:
            return [await _answer(client, name, f"{seed} {at}", flags) for at in range(flags.each)]

        found = await asyncio.gather(*map(stream, seeds))
    return sum(tokens for each in found for tokens, _ in each), found


async def _answer(
    client: httpx.AsyncClient, name: str, seed: str, flags: argparse.Namespace
) -> tuple[int, str]:
    body = {"temperature": 0.0, "seed": 7, **WORKLOADS[name](random.Random(seed))}
    body["max_completion_tokens"] = flags.tokens
    reply = await client.post("/v1/chat/completions", content=json.dumps(body))
    reply.raise_for_status()
    answer = reply.json()
    return answer["usage"]["completion_tokens"], answer["choices"][0]["message"]["content"]


def short(document: Document) -> list[str]:
    """What is not as it should be."""
    found = []
    for row in document["rows"]:
        wanted = WANTED.get((row["name"], row["streams"]), NOISE)
        if row["ratio"] < wanted:
            found.append(
                f"{row['name']} at {row['streams']} streams is {row['ratio']:.2f} times as fast;"
                f" {wanted} is wanted"
            )
    return found


def markdown(document: Document) -> str:
    found = short(document)
    verdict = "All as wanted." if not found else "Not as wanted: " + "; ".join(found) + "."
    return (
        f"{machine_line(document)}\n\nModel {document['model']},"
        f" `--speculative-config '{document['speculative_config']}'`. Medians over rounds;"
        f" all outputs were equal with and without.\n\n{table(COLUMNS, document['rows'])}\n\n"
        f"{verdict}\n"
    )


def _words(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(WORKLOADS)}")
    return names


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


OPTIONS = {
    "--model": {"default": "smollm2-135m", "help": "as `penstock serve` takes it"},
    "--speculative-config": {
        "default": '{"method": "suffix"}',
        "help": "of the server that drafts",
    },
    "--workloads": {"type": _words, "default": list(WORKLOADS), "help": "with commas"},
    "--streams": {"type": _numbers, "default": [1, 4, 16, 64], "help": "with commas"},
    "--rounds": {"type": int, "default": 5, "help": "each with both servers"},
    "--tokens": {"type": int, "default": 128, "help": "of an answer"},
    "--each": {"type": int, "default": 1, "help": "requests of a stream, one after another"},
}
COMMAND = Measurement(
    "speculation", __doc__, measure, markdown, OPTIONS, faults=lambda found: bool(short(found))
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
