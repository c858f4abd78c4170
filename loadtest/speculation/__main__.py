"""What drafted tokens gain, and whether they cost anything where there is nothing to gain.

    python -m loadtest.speculation                    # some half an hour
    python -m loadtest.speculation --rounds 3 --seconds 2 --cells copy:1,chat:4 --output FOLDER

Three servers with the same model, of which one drafts: two that don't say what differences mean
nothing on this machine, at this time. They answer the same requests in turn, while the others wait.
Each stream sends its next request when the last answer has ended, and is busy throughout, so it is
the server's rate that is measured. Each request is a new one, so that no output has been seen
before. Answers that have ended must be equal.

Of short answers, prompts are a large part of the work, and which of them fall into a window of some
seconds is luck: with `--decoding`, windows begin when all streams have their first tokens and end
before one has its last, so that a few of them tell what drafts cost to 1 or 2 %.

On a machine that others use too, rates tell little; processor time of a token tells more.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from loadtest.report import Document, Flags, Measurement, chart, machine_line, of_first, say, table
from loadtest.speculation.requests import WORKLOADS
from loadtest.speculation.streams import Pace, Streams, pace
from testing.serving import Server

NOISE = 0.98
"""The least ratio of speeds that counts as no loss, where drafts can't help."""
WANTED = {("copy", 1): 1.8, ("JSON", 1): 1.2}
ERRORS = 2.0
"""Standard errors by which a ratio has to miss what is wanted, for that to be more than noise."""
HEAD = """# What drafts gain

Of each machine the newest run of `python -m loadtest.speculation`. Geometric means over rounds,
with their standard errors. Off / off: of two servers that don't draft, which is what the machine's
noise is. Processor time: of all processes, for a token, with drafts to without. Drafted, kept: of
all tokens."""
OFF, AGAIN, DRAFTS = "off", "off again", "drafts"
COLUMNS = {
    "requests": "{name}",
    "streams": "{streams}",
    "tok/s without": "{without:.0f}",
    "tok/s with": "{with_drafts:.0f}",
    "ratio": "{ratio:.2f} ± {error:.2f}",
    "off / off": "{same:.2f} ± {same_error:.2f}",
    "processor time": "{cost:.3f} ± {cost_error:.3f}",
    "off / off, so": "{same_cost:.3f} ± {same_cost_error:.3f}",
    "drafted": "{drafted:.2f}",
    "kept": "{kept:.2f}",
}


def measure(flags: Flags) -> Iterator[Document]:
    """What is known after each cell."""
    rows: list[dict[str, Any]] = []
    known = {
        "model": Path(flags.model).name,
        "speculative_config": flags.speculative_config,
        "decoding": flags.decoding,
    }
    with ExitStack() as running:
        servers = {
            name: running.enter_context(_server(flags, config))
            for name, config in ((OFF, "off"), (AGAIN, "off"), (DRAFTS, flags.speculative_config))
        }
        for name, streams in flags.cells:
            cell = Streams(name, streams, flags.tokens, flags.decoding)
            rows.append(asyncio.run(row(servers, cell, flags)))
            yield {**known, "rows": rows}


def _server(flags: Flags, config: str) -> Server:
    common = ("--model", flags.model, "--max-model-len", "2048", "--max-num-seqs", "64")
    return Server(*common, "--speculative-config", config)


async def row(servers: dict[str, Server], streams: Streams, flags: Flags) -> dict[str, Any]:
    """Each round has all servers, and begins with another one."""
    say(f"{streams.name}, {streams.count} streams")
    found: dict[str, list[Pace]] = {name: [] for name in servers}
    names = list(servers)
    for number in range(flags.rounds):
        at = number % len(names)
        round_: dict[str, Pace] = {}
        for name in names[at:] + names[:at]:
            round_[name] = await pace(servers[name], streams, str(number), flags.seconds)
        _compare(streams, round_)
        for name, each in round_.items():
            found[name].append(each)
    made = _row(streams, found)
    say(f"  {made['ratio']:.3f} ± {made['error']:.3f} times as fast; off {made['same']:.3f}")
    say(f"  {made['cost']:.3f} ± {made['cost_error']:.3f} of the processor time")
    return made


def _compare(streams: Streams, round_: dict[str, Pace]) -> None:
    """Raises RuntimeError if answers differ."""
    ended = set.intersection(*(set(each.answers) for each in round_.values()))
    for at in ended:
        if len({each.answers[at] for each in round_.values()}) > 1:
            raise RuntimeError(f"{streams.name}, {streams.count} streams: outputs differ at {at}")


def _row(streams: Streams, found: dict[str, list[Pace]]) -> dict[str, Any]:
    rates = {name: [each.rate for each in paces] for name, paces in found.items()}
    costs = {name: [each.cost for each in paces] for name, paces in found.items()}
    ratio, error = ratios(rates[DRAFTS], rates[OFF], rates[AGAIN])
    same, same_error = ratios(rates[AGAIN], rates[OFF])
    cost, cost_error = ratios(costs[DRAFTS], costs[OFF], costs[AGAIN])
    same_cost, same_cost_error = ratios(costs[AGAIN], costs[OFF])
    drafts, tokens = found[DRAFTS], sum(each.tokens for each in found[DRAFTS])
    return {
        "name": streams.name,
        "streams": streams.count,
        "without": statistics.median(rates[OFF] + rates[AGAIN]),
        "with_drafts": statistics.median(rates[DRAFTS]),
        "ratio": ratio,
        "error": error,
        "same": same,
        "same_error": same_error,
        "cost": cost,
        "cost_error": cost_error,
        "same_cost": same_cost,
        "same_cost_error": same_cost_error,
        "drafted": sum(each.drafted for each in drafts) / tokens,
        "kept": sum(each.kept for each in drafts) / tokens,
        "rates": rates,
        "costs": costs,
    }


def ratios(of: Sequence[float], *bases: Sequence[float]) -> tuple[float, float]:
    """The geometric mean of the rounds' ratios, and its standard error. bases: of each round, the
    geometric mean of these is what it is divided by."""
    logarithms = [
        math.log(each) - statistics.fmean(math.log(base) for base in others)
        for each, *others in zip(of, *bases, strict=True)
    ]
    mean = math.exp(statistics.fmean(logarithms))
    if len(logarithms) < 2:
        return mean, 0.0
    return mean, mean * statistics.stdev(logarithms) / math.sqrt(len(logarithms))


def short(document: Document) -> list[str]:
    """What is not as it should be, by more than noise."""
    found = []
    for each in document["rows"]:
        wanted = WANTED.get((each["name"], each["streams"]), NOISE)
        if each["ratio"] + ERRORS * each["error"] < wanted:
            found.append(
                f"{each['name']} at {each['streams']} streams is {each['ratio']:.2f} times as fast;"
                f" {wanted} is wanted"
            )
    return found


def markdown(document: Document) -> str:
    found = short(document)
    verdict = (
        "Nothing is short of what is wanted by more than two standard errors."
        if not found
        else "Not as wanted: " + "; ".join(found) + "."
    )
    rows = document["rows"]
    vague = sum(each["error"] > 1.0 - NOISE for each in rows)
    if vague:
        verdict += (
            f" In {vague} of {len(rows)} rows the error is larger than the {1.0 - NOISE:.0%} that"
            " drafts may cost: these can't show that they cost no more."
        )
    window = ", only while all streams decode" if document.get("decoding") else ""
    return (
        f"{machine_line(document)}; model {document['model']},"
        f" `--speculative-config '{document['speculative_config']}'`{window}.\n\n"
        f"{table(COLUMNS, rows)}\n{verdict}\n"
    )


def draw(path: Path, document: Document) -> None:
    names = list(dict.fromkeys(each["name"] for each in document["rows"]))
    with chart(path, size=(7, 4)) as axes:
        for name in names:
            own = [each for each in document["rows"] if each["name"] == name]
            axes.errorbar(
                [each["streams"] for each in own],
                [each["ratio"] for each in own],
                [each["error"] for each in own],
                marker="o",
                capsize=3,
                label=name,
            )
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set(xscale="log", xlabel="streams", ylabel="times as fast as without drafts")
        axes.legend()


def _cells(text: str) -> list[tuple[str, int]]:
    found = []
    for part in text.split(","):
        name, _, streams = part.partition(":")
        if name not in WORKLOADS or not streams.isdigit() or not int(streams):
            raise argparse.ArgumentTypeError(
                f"{part!r} is no cell as chat:4 is; requests are {', '.join(WORKLOADS)}"
            )
        found.append((name, int(streams)))
    return found


OPTIONS = {
    "--model": ("smollm2-135m", "as `penstock serve` takes it"),
    "--speculative-config": ('{"method": "suffix"}', "of the server that drafts"),
    "--cells": {
        "type": _cells,
        "default": [(name, streams) for name in WORKLOADS for streams in (1, 4, 16, 64)],
        "help": "requests and streams, as in copy:1,chat:4; all, with 1, 4, 16 and 64 streams",
    },
    "--rounds": (6, "each with all three servers"),
    "--seconds": (4.0, "of each server in a round"),
    "--tokens": (128, "of an answer"),
    "--decoding": (False, "measure only once all streams decode, and none of their answers ends"),
}
COMMAND = Measurement(
    "speculation",
    __doc__,
    measure,
    markdown,
    OPTIONS,
    draw=of_first(draw),
    head=HEAD,
    faults=lambda found: bool(short(found)),
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
