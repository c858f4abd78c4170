"""What adapters cost: steps of many streams with an adapter each, against the model alone.

    python -m loadtest.adapters                    # some minutes, on a quiet machine

The worker's forward pass on the CPU kernels computes decode steps of `--streams` sequences, and a
prompt's chunk, by itself: no sampler, no engine core. Cases take turns, so that a change of the
machine's speed touches all of them. Adapters are made up: random factors for all projections of all
layers, with the ranks 4, 8, 16, 32 and 64 in turn. With `--peft`, transformers and PEFT compute the
same afterwards. A small mixture of experts with random weights is measured in the same way, with
adapters that change its router and all its experts besides.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # As the worker has it.

import numpy as np
import torch

from loadtest.forward_pass import blocks_of, recipe_of, sequences_of
from loadtest.peers import random_gguf
from loadtest.peers.children import answer_of
from loadtest.peers.servers import default_model, packaged_file
from loadtest.report import Document, Flags, Measurement, machine_line, say, table
from penstock.config.settings import EngineConfig
from penstock.model.config import PreparedModel
from penstock.prepare import load_manifest, prepare
from penstock_worker.adapters.adaptable import adaptable_modules, expert_modules
from penstock_worker.adapters.fitting import FittedModule
from penstock_worker.adapters.interface import BatchAdapters, HeldAdapter
from penstock_worker.forward.interface import Batch, Forward, Recipe
from penstock_worker.machine.cpu import usable_threads
from penstock_worker.weights.stored import StoredTensor

RANKS = (4, 8, 16, 32, 64)
MIXTURE = replace(random_gguf.SHAPES["moe"], layers=6, experts=16, active=4)
"""What adapters of experts are measured with."""
CHUNK = 512
"""Tokens of the prompt's chunk."""
SHOWN = {
    "case": "{case}",
    "decode, tok/s": "{decode:,.0f}",
    "of the model alone": "{decode_share:.2f}",
    "prompt, tok/s": "{prompt:,.0f}",
    "share": "{prompt_share:.2f}",
}


@dataclass(frozen=True)
class Case:
    """How a step's sequences have adapters. adapters: how many different ones; 0: none has any.
    served: whether the worker was started for adapters."""

    name: str
    adapters: int
    served: bool = True


def cases(most: int) -> Iterator[Case]:
    yield Case("the model alone", 0, served=False)
    yield Case("adapters enabled, none used", 0)
    yield Case("one adapter of rank 16", 1)
    yield Case(f"{most} adapters of ranks 4 to 64", most)


def measure(flags: Flags) -> Document:
    threads = flags.threads or usable_threads()
    prepared = load_manifest(prepare(flags.model))
    rows = list(_rows(_turns(flags, prepared, threads), flags.streams))
    if flags.peft:
        rows += _rows(_peft(flags, threads), flags.streams)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mixture.gguf"
        random_gguf.write(path, MIXTURE, default_model())
        mixture = load_manifest(prepare(str(path), cache_dir=Path(folder) / "cache"))
        experts = _turns(flags, mixture, threads, experts=True)
    return {
        "model": flags.model,
        "streams": flags.streams,
        "context": flags.context,
        "rows": rows,
        "experts": list(_rows(experts, flags.streams)),
    }


def _turns(
    flags: Flags, prepared: PreparedModel, threads: int, *, experts: bool = False
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of a decode step and of a prompt's chunk in each turn, by case. `experts`: adapters
    change routers and experts, too."""
    forwards: dict[bool, Forward] = {}
    held: list[HeldAdapter] = []
    for served in (False, True):
        more: dict[str, Any] = {"lora_experts": experts and served}
        more |= {"max_loras": flags.adapters, "max_lora_rank": max(RANKS)} if served else {}
        recipe = recipe_for(flags, prepared, threads, **more)
        blocks = flags.streams * blocks_of(flags.context + CHUNK)
        with torch.inference_mode():
            forwards[served] = recipe.build()(blocks)
            if recipe.adapters is not None:
                held = [
                    recipe.adapters.hold(
                        _modules(prepared, RANKS[(at + 2) % len(RANKS)], at, experts=experts)
                    )
                    for at in range(flags.adapters)
                ]
    found: dict[str, list[tuple[float, float]]] = {}
    for turn in range(flags.rounds):
        say(f"round {turn + 1} of {flags.rounds}")
        for case in cases(flags.adapters):
            mine = held[: case.adapters]
            forward = forwards[case.served]
            decode = step_seconds(forward, decode_batch(flags, mine), flags.steps)
            prompt = step_seconds(forward, _prompt(mine), max(1, flags.steps // 8))
            found.setdefault(case.name, []).append((decode, prompt))
    return found


def _peft(flags: Flags, threads: int) -> dict[str, list[tuple[float, float]]]:
    say("transformers and PEFT")
    compared = [case for case in cases(flags.adapters) if case.adapters or not case.served]
    seconds = answer_of(
        "PEFT",
        [sys.executable, "-m", "loadtest.peers.low_rank_steps"],
        {
            "file": str(packaged_file(flags.model)),
            "ranks": [RANKS[(at + 2) % len(RANKS)] for at in range(flags.adapters)],
            "adapters": [case.adapters for case in compared],
            "threads": threads,
            "streams": flags.streams,
            "context": flags.context,
            "steps": flags.peft,
            "chunk": CHUNK,
        },
        3600,
        unset=["OMP_WAIT_POLICY"],
    )
    return {
        f"PEFT, {case.name}": [(decode, prompt)]
        for case, (decode, prompt) in zip(compared, seconds, strict=True)
    }


def _rows(found: dict[str, list[tuple[float, float]]], streams: int) -> Iterator[dict[str, Any]]:
    base = None
    for name, times in found.items():
        decode, prompt = (statistics.median(each) for each in zip(*times, strict=True))
        base = base or (decode, prompt)
        yield {
            "case": name,
            "decode": streams / decode,
            "decode_share": base[0] / decode,
            "prompt": CHUNK / prompt,
            "prompt_share": base[1] / prompt,
        }


def step_seconds(forward: Forward, batch: Batch, steps: int) -> float:
    """Returns the median of one step."""
    rows, times = np.cumsum(batch.counts) - 1, []
    for _ in range(steps):
        begun = time.perf_counter()
        with torch.inference_mode():
            forward.logits(batch, rows)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def decode_batch(flags: Flags, held: list[HeldAdapter]) -> Batch:
    """A token of each stream; those of one adapter are neighbours, as a worker has them."""
    which = np.sort(np.arange(flags.streams) % len(held)) if held else None
    return sequences_of(
        np.arange(flags.streams) + 100,
        flags.streams,
        flags.context,
        slots=range(flags.streams),
        adapters=None if which is None else BatchAdapters(tuple(held), which),
    )


def _prompt(held: list[HeldAdapter]) -> Batch:
    """The first tokens of a prompt."""
    adapters = BatchAdapters(tuple(held[:1]), np.zeros(1, dtype=np.int64)) if held else None
    return sequences_of(np.arange(CHUNK) + 100, slots=(0,), adapters=adapters)


def _modules(
    prepared: PreparedModel, rank: int, seed: int, *, experts: bool
) -> dict[str, FittedModule]:
    random = np.random.default_rng(seed)

    def stored(rows: int, columns: int) -> StoredTensor:
        values = 0.01 * random.standard_normal((rows, columns), dtype=np.float32)
        return StoredTensor("factor", (rows, columns), "F32", values.reshape(-1).view(np.uint8))

    modules = adaptable_modules(prepared.decoder)
    if experts:
        modules = modules | expert_modules(prepared.decoder)
    return {
        name: FittedModule(stored(rank, inputs), stored(outputs, rank), 1.0)
        for name, (outputs, inputs) in modules.items()
    }


def recipe_for(flags: Flags, prepared: PreparedModel, threads: int, **more: Any) -> Recipe:
    """For the flags' streams. more: other fields of Setup."""
    return recipe_of(
        prepared,
        threads,
        sequences=flags.streams,
        step_tokens=max(CHUNK, flags.streams),
        context=flags.context + CHUNK,
        dtype=flags.dtype,
        kv_memory_fraction=EngineConfig().cache.kv_memory_fraction,
        **more,
    )


def markdown(document: Document) -> str:
    return (
        f"{machine_line(document)}\n\n"
        f"{document['model']}, {document['streams']} streams at {document['context']} tokens; a"
        f" prompt's chunk has {CHUNK}. The forward pass alone, medians of turns:\n\n"
        f"{table(SHOWN, document['rows'])}\n"
        f"A mixture of {MIXTURE.experts} experts, of which a token has {MIXTURE.active}, with"
        f" {MIXTURE.layers} layers of {MIXTURE.hidden} numbers and random weights. Adapters change"
        " its projections, its routers and all its experts:\n\n"
        f"{table(SHOWN, document['experts'])}"
    )


FLAGS = {
    "--model": ("smollm2-135m", ""),
    "--dtype": ("auto", ""),
    "--streams": (64, ""),
    "--adapters": (16, ""),
    "--context": (256, "tokens"),
    "--steps": (16, ""),
    "--rounds": (5, ""),
    "--peft": (0, "of PEFT's; 0: without it"),
    "--threads": (0, "0: as many as the worker would take"),
}
COMMAND = Measurement("adapters", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
