"""Of few rows each thread makes the inputs of products for itself, and reads all of them: nothing
may be written to where they lie before all threads have them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind, Program
from penstock_worker.forward.cpu import backend as cpu
from tests.worker.cpu_model import CPUModel
from tests.worker.models import family_cases, test_recurrent_models, test_twins
from tests.worker.models.family_cases import CASES
from tests.worker.models.recurrent_cases import RECURRENT_CASES
from tests.worker.models.test_parity_on_cpu import REFUSED
from tests.worker.models.twins import TWINS
from tests.worker.random_weights import RandomWeights

NO_FILES = WeightFiles(format="safetensors", files=(), dtype="float32")

ELSEWHERE = {
    PhaseKind.MAKE_INPUT,
    *(PhaseKind.ROUTE, PhaseKind.EXPERTS_UP, PhaseKind.EXPERTS_DOWN),
}
"""Phases that write to memory of their own, whatever their target."""
READERS: dict[str, Callable[[str], ModelConfig]] = {
    **dict.fromkeys(CASES, family_cases.read),
    **dict.fromkeys(RECURRENT_CASES, test_recurrent_models.read),
    **dict.fromkeys(TWINS, test_twins.read),
}


class Part(NamedTuple):
    """Columns of a buffer."""

    buffer: Buffer
    begin: int = 0
    end: int = sys.maxsize

    def meets(self, other: Part) -> bool:
        return self.buffer is other.buffer and self.begin < other.end and other.begin < self.end


def read_by_all(phase: Phase) -> Iterator[Part]:
    """What each thread reads of all rows of a small step."""
    if phase.kind is not PhaseKind.MAKE_INPUT:
        return
    yield Part(phase.source, phase.first, phase.first + phase.width)
    if phase.gates:
        yield Part(Buffer.RESULT)
    if phase.recurrent is not None:
        yield Part(Buffer.QUERIES)


def written(phase: Phase) -> Iterator[Part]:
    if phase.kind in ELSEWHERE:
        return
    if phase.kind is PhaseKind.PRODUCT:
        yield Part(phase.target, phase.first, phase.first + phase.matrices[0].struct.outputs)
    else:
        yield Part(phase.target)


def overwritten(phases: Sequence[Phase]) -> Iterator[tuple[int, Part]]:
    """Phases that write to where another thread may still read, and where that is."""
    being_read: list[Part] = []
    for number, phase in enumerate(phases):
        for part in written(phase):
            if any(part.meets(other) for other in being_read):
                yield number, part
        being_read += read_by_all(phase)
        if phase.waits:
            being_read = []


@pytest.mark.parametrize("case", [case for case in READERS if case not in REFUSED])
def test_nothing_is_written_where_another_thread_reads(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[Program] = []

    def compiled(*given: Any, **named: Any) -> Program:
        programs.append(compile_program(*given, **named))
        return programs[-1]

    compile_program = cpu.compile_program
    monkeypatch.setattr(cpu, "compile_program", compiled)
    monkeypatch.setattr(cpu, "open_weights", lambda *ignored, **also: RandomWeights())
    model = CPUModel(READERS[case](case), NO_FILES, "float32", positions=256)
    model.forward(block_size=16, num_blocks=16 * model.groups, threads=1)
    for program in programs:
        assert any(True for phase in program.phases for _ in read_by_all(phase))
        assert list(overwritten(program.phases)) == []
    assert programs
