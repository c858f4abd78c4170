"""How long it takes to verify an answer, beside generating it: `python -m loadtest.receipts`.

One engine with default settings generates answers of 1,000 tokens; another with those of `penstock
verify` computes them again, all tokens or some. Both have the same processors, and take turns; the
prefix cache is emptied before each. Times are medians of rounds.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from loadtest.report import Document, Flags, Measurement, SetupError, machine_line, say, table
from penstock import AsyncLLM, SamplingParams
from penstock.request.terms import Terms
from penstock_receipts.replay import QUICKLY, Claimed, Place, Replay

WANTED = 10.0
"""How many times as fast as generation verifying is to be."""
PROMPT = "The history of the water mill begins in antiquity."
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn, with penalties": {
        "temperature": 0.9,
        "top_p": 0.95,
        "seed": 7,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.1,
    },
}


def measure(flags: Flags) -> Document:
    """Every way of sampling, generated and verified."""
    return asyncio.run(_measure(flags))


async def _measure(flags: Flags) -> Document:
    settings = {"max_model_len": 2 * flags.tokens, "num_kv_blocks": flags.tokens // 4}
    async with (
        AsyncLLM(flags.model, speculative_config="off", **settings) as server,
        AsyncLLM(flags.model, **QUICKLY, **settings) as verifier,
    ):
        rows = []
        for name, given in PARAMS.items():
            params = SamplingParams(max_tokens=flags.tokens, ignore_eos=True, **given)
            rows.append({"name": name, **await _compared(server, verifier, params, flags)})
            say(f"{name}: {rows[-1]}")
    return {
        "model": Path(flags.model).name,
        "tokens": flags.tokens,
        "sample": flags.sample,
        "rows": rows,
    }


async def _compared(
    server: AsyncLLM, verifier: AsyncLLM, params: SamplingParams, flags: Flags
) -> Document:
    prompt = server.text.tokenizer.encode(PROMPT)
    replay = Replay(verifier.client, Terms())
    output: list[int] = []

    async def generated() -> None:
        output[:] = []
        generation = await server.client.submit(prompt, params, name="generated", read_at_end=True)
        async for deltas in generation:
            for delta in deltas:
                output.extend(delta.token_ids)

    def claimed() -> Claimed:
        return Claimed(
            prompt=prompt, params=params, sequence=0, output=output, finish_reason="length"
        )

    def same(found: Place | list[Place] | None) -> None:
        if found:
            raise SetupError(f"the answer isn't what was computed: {found}")

    async def whole() -> None:
        same(await replay.whole(claimed()))

    async def sampled() -> None:
        same(await replay.positions(claimed(), flags.sample))

    async def as_prompt() -> None:
        once = SamplingParams(max_tokens=1)
        generation = await verifier.client.submit([*prompt, *output], once, name="prompt")
        async for _ in generation:
            pass

    works = {"generated": generated, "prompt": as_prompt, "whole": whole, "sampled": sampled}
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(flags.rounds):
        for name, work in works.items():
            for llm in (server, verifier):
                await llm.reset_prefix_cache()
            seconds[name].append(await _seconds(work))
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return {
        **medians,
        "whole_ratio": medians["generated"] / medians["whole"],
        "sampled_ratio": medians["generated"] / medians["sampled"],
        "rounds": seconds,
    }


async def _seconds(work: Callable[[], Awaitable[None]]) -> float:
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


def markdown(document: Document) -> str:
    """The table."""
    rows = [{**row, "most": row["generated"] / row["prompt"]} for row in document["rows"]]
    columns = {
        "how tokens are chosen": "{name}",
        "generated, s": "{generated:.2f}",
        "as a prompt, s": "{prompt:.2f}",
        "times as fast at most": "{most:.1f}",
        "all tokens verified, s": "{whole:.2f}",
        "times as fast": "{whole_ratio:.1f}",
        f"{document['sample']} tokens verified, s": "{sampled:.2f}",
        "so": "{sampled_ratio:.1f}",
    }
    return (
        f"{machine_line(document)}\n\n{document['model']}, {document['tokens']} tokens; wanted is"
        f" {WANTED:g} times.\n\n{table(columns, rows)}\n\nA verified token costs what one"
        " of a prompt costs, and its logits and sampling: all tokens can be verified as many times"
        " as fast at most as reading them as a prompt is faster than generating them.\n"
    )


def faults(document: Document) -> str:
    """Says so where verifying all tokens isn't as fast as wanted."""
    least = min(row["whole_ratio"] for row in document["rows"])
    return f"{least:.1f} times as fast, not {WANTED:g}" if least < WANTED else ""


FLAGS = {
    "--model": ("smollm2-135m", "that is served"),
    "--tokens": (1000, "of an answer"),
    "--sample": (16, "tokens that are verified, where not all are"),
    "--rounds": (5, "of which the median counts"),
}
COMMAND = Measurement(
    "receipts",
    __doc__,
    measure,
    markdown,
    FLAGS,
    head="# Verifying an answer\n\n`python -m loadtest.receipts`: beside generating it.",
    faults=faults,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
