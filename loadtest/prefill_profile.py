"""Where the time of a step of prompts goes, on each instruction set of the CPU kernels.

    python -m loadtest.prefill_profile                        # half a minute
    python -m loadtest.prefill_profile --isa avx512 --threads 1 --output FOLDER

The kernels alone, by the clock of each phase. Of repeated steps the fastest is shown, part by part:
what nothing disturbed.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # As the worker has it.

import numpy as np

from loadtest.decode_profile import NAMES, by_isa, by_part, forward_of, names, parts_table
from loadtest.forward_pass import blocks_of, sequences_of
from loadtest.peers.servers import default_model
from loadtest.report import Document, Flags, Measurement, machine_line, say, sections
from penstock.prepare import prepare
from penstock.process.machine import usable_cores
from penstock_kernels.cpu import library
from penstock_worker.forward.cpu.forward import CPUForward
from penstock_worker.forward.interface import Batch

REPEATED = 7
HEAD = NAMES["LOGITS RESIDUAL"]


@dataclass(frozen=True)
class PromptStep:
    """Prompts of one length, of which as many tokens have been computed before."""

    name: str
    sequences: int
    tokens: int
    before: int = 0

    @property
    def blocks(self) -> int:
        """Of a sequence."""
        return blocks_of(self.before + self.tokens)

    @property
    def rows(self) -> int:
        return self.sequences * self.tokens

    def batch(self) -> Batch:
        ids = np.random.default_rng(1).integers(0, 40_000, self.rows)
        return sequences_of(ids, self.sequences, self.before)


STEPS = (
    PromptStep("512 tokens", 1, 512),
    PromptStep("512 behind 512", 1, 512, 512),
    PromptStep("32 prompts of 16", 32, 16),
)
"""A step that begins behind others' tokens reads what the one before it has left in the cache."""


def measure(flags: Flags) -> Document:
    folder, cases = prepare(str(default_model())), []
    for name in flags.isa or dict.fromkeys([library.instruction_set(), "avx2"]):
        library.use(name)
        say(f"prefill_profile: {name}")
        forward = forward_of(
            folder,
            flags.threads,
            sequences=max(step.sequences for step in STEPS),
            blocks=max(step.sequences * step.blocks for step in STEPS),
            tokens=max(step.rows for step in STEPS),
        )
        cases += [
            {"isa": name, "step": step.name, "rows": step.rows, "parts": parts_of(forward, step)}
            for step in STEPS
        ]
    return {"model": default_model().name, "threads": flags.threads, "cases": cases}


def parts_of(forward: CPUForward, step: PromptStep) -> list[dict[str, object]]:
    """Parts of the step: name, seconds, seconds waited, and of products operations a second."""
    ticks, taken = forward.decoder.watch(), []
    wanted = step.tokens * np.arange(1, step.sequences + 1) - 1
    for _ in range(REPEATED):
        ticks[:] = 0
        forward.likeliest(step.batch(), wanted)
        taken.append(ticks.mean(axis=0) / 1e9)  # Of all threads.
    parts = by_part(forward.decoder.program.phases, np.min(taken, axis=0))
    for part in parts:
        rows = len(wanted) if part["name"] == HEAD else step.rows
        part["operations"] = 2 * rows * int(str(part["macs"]))
    return parts


def markdown(document: Document) -> str:
    parts = [
        f"{machine_line(document)}; {document['model']}, {document['threads']} threads. "
        "Milliseconds of a step; of products, thousand million operations a second in brackets (a "
        "multiply-add is two)."
    ]
    for isa, cases in by_isa(document):
        waited = [sum(part["waited"] for part in case["parts"]) for case in cases]
        whole = [sum(part["seconds"] + part["waited"] for part in case["parts"]) for case in cases]
        speeds = [case["rows"] / seconds for case, seconds in zip(cases, whole, strict=True)]
        foot = {
            "waiting for each other": (f"{1e3 * each:.1f}" for each in waited),
            "**the step**": (f"{1e3 * each:.1f}" for each in whole),
            "**tokens a second**": (f"{each:,.0f}" for each in speeds),
        }
        parts.append(parts_table(isa, cases, [case["step"] for case in cases], _cell, foot))
    return sections(parts)


def _cell(part: Document) -> str:
    shown = f"{1e3 * part['seconds']:.1f}"
    if not part["operations"] or not part["seconds"]:
        return shown
    return f"{shown} ({part['operations'] / part['seconds'] / 1e9:.0f})"


FLAGS = {
    "--isa": {"type": names, "help": "instruction sets; by default this machine's own and avx2"},
    "--threads": (max(int(usable_cores()), 1), "that compute"),
}
COMMAND = Measurement("prefill_profile", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
