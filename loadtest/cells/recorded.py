"""What a step costs, from what `loadtest.machine` recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from loadtest.report import ROOT
from penstock_planning.simulate.cost import StepCost

FILE = ROOT / "loadtest/results/machines/intel-r-xeon-r-processor-family-6-model-207.json"
MODEL = "Qwen2.5-Coder 0.5B, Q4_K_M"
SYSTEM = "penstock_without_drafts"

ONE, LONG, MANY, SOME = (
    "1 stream, prose, 64 in, 128 out",
    "1 stream at 4,096 context, 64 out",
    "64 streams, 64 in, 64 out",
    "8 streams, 64 in, 64 out",
)
PROMPTS, PROMPT = "prefill, 8 × 1,024", "prefill, 1 × 4,096"


def recorded() -> dict[str, float]:
    """Tokens per second of each kind of work."""
    run = json.loads(FILE.read_text(encoding="utf-8"))[MODEL]
    rates: dict[str, Any] = run["systems"][SYSTEM]["rates"]
    return {name: float(each[0]) for name, each in rates.items() if each}


def cost_of(rates: Mapping[str, float]) -> StepCost:
    """Weights are read while tokens are computed: the longer one counts.  A token costs what it
    does of many prompts; a sequence, what a step of 64 takes beyond that; the base, what a step of
    one does; reading a token's KV, what 4,096 of them add."""
    token, alone = 1000 / rates[PROMPTS], 1000 / rates[ONE]
    decodes = 64 * 64 * 1000 / rates[MANY] - 64 * 64 * token
    sequence = decodes / 64 / 64 - token
    return StepCost(
        base_ms=alone - sequence,
        token_ms=0.0,
        hidden_ms=token,
        sequence_ms=sequence,
        read_ms=(1000 / rates[LONG] - alone) / (4096 - 64),
    )


def predicted(cost: StepCost) -> dict[str, float]:
    """Tokens per second of work that the cost was not made from."""
    prompts = cost.seconds(8 * 64, 8, 0, reads=8 * 64)
    decodes = sum(cost.seconds(8, 8, 0, reads=8 * (65 + at)) for at in range(63))
    steps = sum(cost.seconds(512, 1, 0, reads=512 * (at + 1)) for at in range(8))
    return {SOME: 8 * 64 / (prompts + decodes), PROMPT: 4096 / steps}


def as_flag(cost: StepCost) -> str:
    """For --step-cost."""
    parts = ("base", "hidden", "sequence", "read")
    return ",".join(f"{part}={getattr(cost, part + '_ms'):.4g}" for part in parts)
