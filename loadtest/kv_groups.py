"""KV memory of one sequence against its context, with KV groups and without.

    python -m loadtest.kv_groups                   # seconds; only counts

An engine core without sockets runs one long request, for models with the layers of known ones.
What the sequence holds is counted between steps, when no step is in flight; nothing is timed.
Without groups means one block table for all layers, as for a model without windows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadtest.bare_core import BLOCK, WORKER, plans_of, started_core
from loadtest.report import Document, Flags, Measurement, chart, machine_line, table
from penstock.config.settings import EngineConfig
from penstock.model.config import ModelConfig
from penstock.model.kv_layout import (
    KVGroup,
    KVLayout,
    blocks_needed,
    kv_groups,
    kv_layout,
    one_group,
    state_bytes,
)
from penstock.model.layer_spec import AttentionSpec, LayerSpec
from penstock.model.recurrent_spec import GatedDeltaSpec
from penstock.protocol.from_worker import Result, SlotResult
from penstock_engine.simulate.simulation import facts as simulated_facts

NUMBER_BYTES = 2  # of the cache's bfloat16
MIB = 1 << 20
GATED_DELTA = GatedDeltaSpec(key_heads=16, value_heads=32, key_dim=128, value_dim=128, kernel=4)
CHUNK = 512
"""Tokens of a step."""
CONTEXTS = (1024, 2048, 4096, 8192, 16_384, 32_768)


@dataclass(frozen=True)
class Model:
    """The layers of a known model. every: number of the layers that see all tokens, of so many;
    None: no layer does. The others have a window, or are recurrent (window 0)."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    window: int
    every: int | None

    @property
    def layer_bytes(self) -> int:
        """Of a block in one layer."""
        return 2 * self.kv_heads * self.head_dim * NUMBER_BYTES * BLOCK

    def config(self, base: ModelConfig) -> ModelConfig:
        sizes = {"num_kv_heads": self.kv_heads, "head_dim": self.head_dim}
        other = LayerSpec(attention=AttentionSpec(window=self.window))
        if not self.window:
            other = LayerSpec(recurrent=GATED_DELTA)
        layers = tuple(LayerSpec() if self._sees_all(at) else other for at in range(self.layers))
        return msgspec.structs.replace(base, num_layers=self.layers, layers=layers, **sizes)

    def _sees_all(self, layer: int) -> bool:
        return self.every is not None and (layer + 1) % self.every == 0


MODELS = (
    Model("Gemma 3 4B", 34, 4, 256, 1024, 6),
    Model("Gemma 2 9B", 42, 8, 256, 4096, 2),
    Model("OLMo 3 7B", 32, 32, 128, 4096, 4),
    Model("Mistral 7B v0.1", 32, 8, 128, 4096, None),
    Model("Qwen3-Next 80B", 48, 2, 256, 0, 4),
)
SHOWN = {
    "model": "{model}",
    "KV groups": "{groups}",
    "context": "{context:,}",
    "blocks": "{blocks:,}",
    "live states, MiB": "{state_mib:,.0f}",
    "MiB": "{mib:,.0f}",
    "MiB with one group": "{before_mib:,.0f}",
    "share": "{share:.0%}",
}


Row = dict[str, Any]
"""What a sequence holds when `context` tokens of it are computed; with one group: `before_mib`."""


def measure(flags: Flags) -> Document:
    contexts = [context for context in CONTEXTS if context <= flags.longest]
    rows = [row for model in MODELS for row in rows_of(model, contexts)]
    models = [asdict(model) for model in MODELS]
    return {"block_size": BLOCK, "chunk": CHUNK, "models": models, "rows": rows}


def rows_of(model: Model, contexts: list[int]) -> Iterator[Row]:
    """One for each context."""
    longest = contexts[-1] + CHUNK
    base = simulated_facts(EngineConfig()).model.decoder
    config = model.config(base)
    layout, whole = kv_layout(config, longest), one_group(model.layers)
    groups = kv_groups(config, NUMBER_BYTES, longest, BLOCK)
    after, before = (dict(held(each, longest)) for each in (groups, whole.groups))
    for context in contexts:
        yield {
            "model": model.name,
            "groups": len(groups),
            "context": context,
            "blocks": after[context],
            "state_mib": state_bytes(config) / MIB,
            "mib": _mib(model, layout, after[context]),
            "before_mib": _mib(model, whole, before[context]),
        }


def _mib(model: Model, layout: KVLayout, blocks: int) -> float:
    return blocks * layout.page_layers(range(model.layers)) * model.layer_bytes / MIB


def held(groups: tuple[KVGroup, ...], longest: int) -> Iterator[tuple[int, int]]:
    """(tokens computed, blocks held) of a long prompt, after each of its steps."""
    settings = {
        "max_num_seqs": 1,
        "max_num_batched_tokens": CHUNK,
        "max_steps_in_flight": 1,
        "max_model_len": longest,
        "max_request_tokens": longest,
    }
    blocks = blocks_needed(groups, longest, BLOCK, 4 * CHUNK)
    prompt = [3 + at % 1000 for at in range(longest - 1)]
    core = started_core(settings, blocks, [prompt], 1, kv_groups=groups)
    while True:
        plans = plans_of(core.step(0.0))
        [sequence] = core.state.scheduling.running.values()
        if sequence.table is not None and sequence.progress.computed:
            # The next chunk's blocks are there too when its plan is made: they are not counted.
            works = [work for plan in plans for work in plan.work]
            new = sum(len(work.new_blocks) + len(work.states) for work in works)
            yield sequence.progress.computed, sequence.table.num_blocks - new
        [plan] = plans
        [work] = plan.work
        if work.start + work.count >= longest - 1:
            return
        core.worker_received(WORKER, Result(plan.step, [SlotResult(work.slot)]), 0.0)


def markdown(document: Document) -> str:
    rows = [{**row, "share": row["mib"] / row["before_mib"]} for row in document["rows"]]
    return (
        f"{machine_line(document)}\n\n"
        "KV memory that one sequence holds, bfloat16, counted in an engine core. Checkpoints of"
        " recurrent layers count; their live states lie beside the pool. With one group, all layers"
        " would have keys and values:\n\n"
        f"{table(SHOWN, rows)}"
    )


def draw(path: Path, document: Document) -> None:
    """A panel for each model."""
    names = [model["name"] for model in document["models"]]
    with chart(path, len(names), size=(3.2 * len(names), 3)) as axes:
        for name, panel in zip(names, axes, strict=True):
            mine = [row for row in document["rows"] if row["model"] == name]
            contexts = [row["context"] for row in mine]
            panel.plot(contexts, [row["before_mib"] for row in mine], "o--", label="one group")
            panel.plot(contexts, [row["mib"] for row in mine], "o-", label="KV groups")
            panel.set(title=name, xlabel="tokens", ylabel="MiB", ylim=(0, None))
            panel.legend()


FLAGS = {"--longest": (CONTEXTS[-1], "tokens")}
COMMAND = Measurement("kv_groups", __doc__, measure, markdown, FLAGS, draw=draw)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
