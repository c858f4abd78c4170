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

from loadtest.report.chart import chart
from loadtest.report.facts import machine_line
from loadtest.report.files import Facts, Report, parser
from loadtest.report.table import table
from penstock.config.settings import EngineConfig
from penstock.config.tree import replace_settings
from penstock.kv_layout import KVLayout, kv_layout, one_group
from penstock.layer_spec import AttentionSpec, LayerSpec
from penstock.model_config import ModelConfig
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.common import Stopping, TokenSampling
from penstock.protocol.from_frontend import Hello, OpenSequence, Submit
from penstock.protocol.from_worker import Ready, Result, SlotResult, WorkerHello
from penstock.protocol.to_worker import Plan
from penstock_engine.core import EngineCore
from penstock_engine.simulate.model import facts as simulated_facts

PROGRAM = "-m loadtest.kv_groups"
FRONTEND, WORKER = b"f" * 16, b"w" * 16
BLOCK = 16
NUMBER_BYTES = 2  # of the cache's bfloat16
MIB = 1 << 20
CHUNK = 512
"""Tokens of a step."""
CONTEXTS = (1024, 2048, 4096, 8192, 16_384, 32_768)


@dataclass(frozen=True)
class Model:
    """The layers of a known model. every: number of the layers that see all tokens, of so many;
    None: no layer does."""

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
        layers = tuple(
            LayerSpec(attention=AttentionSpec(window=None if self._sees_all(at) else self.window))
            for at in range(self.layers)
        )
        return msgspec.structs.replace(base, num_layers=self.layers, layers=layers)

    def _sees_all(self, layer: int) -> bool:
        return self.every is not None and (layer + 1) % self.every == 0


MODELS = (
    Model("Gemma 3 4B", 34, 4, 256, 1024, 6),
    Model("Gemma 2 9B", 42, 8, 256, 4096, 2),
    Model("OLMo 3 7B", 32, 32, 128, 4096, 4),
    Model("Mistral 7B v0.1", 32, 8, 128, 4096, None),
)
SHOWN = {
    "model": "{model}",
    "KV groups": "{groups}",
    "context": "{context:,}",
    "blocks": "{blocks:,}",
    "MiB": "{mib:,.0f}",
    "MiB with one group": "{before_mib:,.0f}",
    "share": "{share:.0%}",
}


@dataclass(frozen=True)
class Row:
    """What a sequence holds when `context` tokens of it are computed."""

    model: str
    groups: int
    context: int
    blocks: int
    mib: float
    before_mib: float

    @property
    def share(self) -> float:
        return self.mib / self.before_mib


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    command = parser(PROGRAM, __doc__.splitlines()[0])
    command.add_argument("--longest", type=int, default=CONTEXTS[-1], metavar="TOKENS")
    flags = command.parse_args(arguments)
    report = Report("kv_groups", PROGRAM, flags, arguments)
    contexts = [context for context in CONTEXTS if context <= flags.longest]
    rows = [row for model in MODELS for row in measure(model, contexts)]
    report.finish(
        {"block_size": BLOCK, "chunk": CHUNK, "models": [asdict(model) for model in MODELS],
         "rows": [asdict(row) for row in rows]},
        lambda facts: markdown(facts, rows),
        draw=lambda path: draw(path, rows),
    )  # fmt: skip
    return 0


def measure(model: Model, contexts: list[int]) -> Iterator[Row]:
    """A row for each context."""
    longest = contexts[-1] + CHUNK
    base = simulated_facts(EngineConfig()).model.decoder
    layout = kv_layout(model.config(base), longest)
    whole = one_group(model.layers)
    after, before = (dict(held(each, longest)) for each in (layout, whole))
    for context in contexts:
        yield Row(
            model.name,
            len(layout.groups),
            context,
            after[context],
            _mib(model, layout, after[context]),
            _mib(model, whole, before[context]),
        )


def _mib(model: Model, layout: KVLayout, blocks: int) -> float:
    return blocks * layout.page_layers(range(model.layers)) * model.layer_bytes / MIB


def held(layout: KVLayout, longest: int) -> Iterator[tuple[int, int]]:
    """(tokens computed, blocks held) of a long prompt, after each of its steps."""
    core = started_core(layout, longest)
    while True:
        plans = [each for _, each, _ in core.step(0.0).to_workers if isinstance(each, Plan)]
        [sequence] = core.state.scheduling.running.values()
        if sequence.table is not None and sequence.progress.computed:
            # The next chunk's blocks are there too when its plan is made: they are not counted.
            new = sum(len(work.new_blocks) for plan in plans for work in plan.work)
            yield sequence.progress.computed, sequence.table.num_blocks - new
        [plan] = plans
        [work] = plan.work
        if work.start + work.count >= longest - 1:
            return
        core.worker_received(WORKER, Result(plan.step, [SlotResult(work.slot)]), 0.0)


def started_core(layout: KVLayout, longest: int) -> EngineCore:
    """With a worker whose model has these groups, and one request."""
    settings = {
        "max_num_seqs": 1,
        "max_num_batched_tokens": CHUNK,
        "max_steps_in_flight": 1,
        "kv_block_size": BLOCK,
        "max_model_len": longest,
        "max_request_tokens": longest,
    }
    core = EngineCore(simulated_facts(replace_settings(EngineConfig(), settings)))
    core.frontend_opened(FRONTEND, Hello(list(PROTOCOL_VERSIONS), "counting", 0), 0.0)
    core.worker_opened(WORKER, WorkerHello(list(PROTOCOL_VERSIONS), 0, 0), 0.0)
    ready = Ready(
        num_kv_blocks=len(layout.groups) * longest // BLOCK + 1,
        device="none",
        fingerprint="none",
        load_seconds=0.0,
        kv_groups=layout.groups,
    )
    core.worker_received(WORKER, ready, 0.0)
    submit = Submit(
        1,
        "long",
        [3 + at % 1000 for at in range(longest - 1)],
        [OpenSequence(0)],
        TokenSampling(seed=0, temperature=0.0),
        Stopping(max_tokens=1),
    )
    core.frontend_received(FRONTEND, submit, 0.0)
    return core


def markdown(facts: Facts, rows: list[Row]) -> str:
    shown: list[dict[str, Any]] = [{**asdict(row), "share": row.share} for row in rows]
    return (
        f"{machine_line(facts)}\n\n"
        "KV memory that one sequence holds, bfloat16, counted in an engine core:\n\n"
        f"{table(SHOWN, shown)}"
    )


def draw(path: Path, rows: list[Row]) -> None:
    """A panel for each model."""
    names = list(dict.fromkeys(row.model for row in rows))
    with chart(path, len(names), size=(3.2 * len(names), 3)) as axes:
        for name, panel in zip(names, axes, strict=True):
            mine = [row for row in rows if row.model == name]
            contexts = [row.context for row in mine]
            panel.plot(contexts, [row.before_mib for row in mine], "o--", label="one group")
            panel.plot(contexts, [row.mib for row in mine], "o-", label="KV groups")
            panel.set(title=name, xlabel="tokens", ylabel="MiB", ylim=(0, None))
            panel.legend()


if __name__ == "__main__":
    sys.exit(main())
