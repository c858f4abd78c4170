"""Adapters in the CPU program: what is computed in front of products that they may change, and
their factors in the kernels' layout.

Matrices are cut by their outputs only (see split.py), so every rank has A as a whole, and the rows
of B that belong to its outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from penstock.protocol.to_worker import Setup
from penstock_kernels.cpu.low_rank import (
    LowRankAdapter,
    LowRankRows,
    LowRankTargets,
    TargetFactors,
    WholeMatrix,
)
from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind
from penstock_worker.adapters.adaptable import (
    DOWN,
    EMBEDDING,
    GATE,
    KEY,
    LATENT_DOWN,
    LATENT_UP,
    OUTPUT,
    QUERY,
    ROUTER,
    SHARED_DOWN,
    SHARED_GATE,
    SHARED_UP,
    SHARED_WEIGHT,
    UP,
    VALUE,
    adapter_bytes,
    expert_targets,
    whole_bytes,
)
from penstock_worker.adapters.fitting import Fitted, FittedMatrix, FittedModule
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.adapters.models import AdaptableModel
from penstock_worker.forward.cpu.gates import FLOATS
from penstock_worker.forward.cpu.split import Split
from penstock_worker.forward.cpu.weights import LayerWeights

_ADAPTED = (PhaseKind.HEADS, PhaseKind.PRODUCT, PhaseKind.GATE_UP)
_OF_EXPERTS = (PhaseKind.EXPERTS_UP, PhaseKind.EXPERTS_DOWN)
_EACH = 3
"""Matrices of a phase."""
_CHUNK_ROWS = 1024
"""Rows of a whole matrix that are read at a time."""


@dataclass
class AdaptedPhases:
    """Puts LOWER in front of the phases whose products adapters may change."""

    modules: Mapping[str, tuple[int, int]]
    """Outputs and inputs of each module, over all ranks, by our name."""
    rank: int
    """The highest that an adapter may have."""
    kind: MatrixKind
    """Kind of factors."""
    split: Split
    first_layer: int = 0
    """First layer of the program, counted in the whole model."""
    names: list[str | None] = field(default_factory=list)
    """Module of each target; None for none."""

    def of_end(self, phase: Phase, name: str) -> Phase:
        """EMBED or LOGITS."""
        if name not in self.modules:
            return phase
        self.names += [name, *[None] * (_EACH - 1)]
        return replace(phase, low_rank=len(self.names) - _EACH)

    def of_layer(
        self, phases: Iterable[Phase], weights: LayerWeights, number: int
    ) -> Iterator[Phase]:
        """`number`: the layer's in the program."""
        whole = self.first_layer + number
        matrices = self._matrices(weights, whole)
        yield from self._of_experts(self.of_phases(phases, matrices), weights, whole)

    def _of_experts(
        self, phases: Iterable[Phase], weights: LayerWeights, number: int
    ) -> Iterator[Phase]:
        """Each of a layer's experts has three targets, which follow those of the expert before."""
        names = list(self._expert_names(weights, number))
        if not any(names):
            yield from phases
            return
        first: int | None = None
        for phase in phases:
            if phase.kind in (PhaseKind.ROUTE, PhaseKind.EXPERTS_UP):
                phase = replace(phase, forms=phase.forms | FLOATS)
            if phase.kind not in _OF_EXPERTS or phase.experts is None:
                yield phase
                continue
            if first is None:
                first = len(self.names)
                self.names += names
            up = phase.kind is PhaseKind.EXPERTS_UP
            yield Phase(
                kind=PhaseKind.LOWER,
                source=Buffer.INPUT if up else Buffer.INNER,
                width=(phase.experts.ups if up else phase.experts.downs)[0].struct.inputs,
                experts=phase.experts,
                part=phase.part,
                low_rank=first,
            )
            yield replace(phase, low_rank=first, waits=True)

    def _expert_names(self, weights: LayerWeights, number: int) -> Iterator[str | None]:
        for expert, down in enumerate(() if weights.experts is None else weights.experts.downs):
            for name in expert_targets(expert):
                whole = f"layers.{number}.{name}"
                yield whole if whole in self.modules and not down.absent else None

    def of_phases(
        self, phases: Iterable[Phase], matrices: Sequence[tuple[PackedMatrix, str]]
    ) -> Iterator[Phase]:
        """`matrices`: those that adapters may change, and their modules; known when the first of
        the phases is."""
        for phase in phases:
            if phase.kind in (PhaseKind.MAKE_INPUT, PhaseKind.GATE_UP, PhaseKind.EXCHANGE):
                # What the factors read as well, besides the matrices, whatever their kind.
                phase = replace(phase, forms=phase.forms | FLOATS if phase.forms else 0)
            own = [self._name(each, matrices) for each in phase.matrices]
            if phase.kind not in _ADAPTED or not any(own):
                yield phase
                continue
            target, first = len(self.names), next(each for each in phase.matrices if each)
            self.names += [*own, *[None] * (_EACH - len(own))]
            yield Phase(
                kind=PhaseKind.LOWER,
                source=phase.source,
                width=first.struct.inputs,
                low_rank=target,
            )
            # The next LOWER writes where this one's products are read from.
            yield replace(phase, low_rank=target, waits=True)

    def _matrices(self, weights: LayerWeights, number: int) -> list[tuple[PackedMatrix, str]]:
        parts = {
            QUERY: weights.query,
            KEY: weights.key,
            VALUE: weights.value,
            OUTPUT: weights.output,
        }
        experts = weights.experts
        if experts is not None:
            parts |= {ROUTER: experts.router, SHARED_WEIGHT: experts.shared_gate}
            parts |= {LATENT_DOWN: experts.latent_down, LATENT_UP: experts.latent_up}
        gate, up, down = (
            (GATE, UP, DOWN) if experts is None else (SHARED_GATE, SHARED_UP, SHARED_DOWN)
        )
        parts |= {gate: weights.gate, up: weights.up, down: weights.down}
        named = ((each, f"layers.{number}.{name}") for name, each in parts.items())
        return [(each, name) for each, name in named if each is not None and name in self.modules]

    @staticmethod
    def _name(
        matrix: PackedMatrix | None, matrices: Sequence[tuple[PackedMatrix, str]]
    ) -> str | None:
        return next((name for each, name in matrices if each is matrix), None)

    def part(self, name: str) -> tuple[range, range]:
        """Returns this rank's outputs and inputs of a module. An embedding is divided by tokens."""
        outputs, inputs = self.modules[name]
        if name == EMBEDDING:
            return range(outputs), self.split.rows(f"{name}.weight", inputs)
        return self.split.rows(f"{name}.weight", outputs), range(inputs)

    def targets(self) -> LowRankTargets:
        """Called when all layers have passed."""
        parts = [None if name is None else self.part(name) for name in self.names]
        shapes = [None if part is None else (len(part[0]), len(part[1])) for part in parts]
        embedding = self.names.index(EMBEDDING) if EMBEDDING in self.names else -1
        return LowRankTargets(shapes, self.rank, self.kind, embedding)


class PackedAdapters:
    """Packs adapters for this rank's program."""

    def __init__(self, model: AdaptableModel, setup: Setup, dtype: str) -> None:
        """`dtype`: the program's. Factors are float32 with float32 weights, else bfloat16: they are
        read as often as the weights, and have their precision."""
        self._modules = model.modules
        self._whole = model.whole if model.takes_whole else {}
        self._most = setup.max_loras
        self._rank = setup.max_lora_rank
        self._kind = MatrixKind.F32 if dtype == "float32" else MatrixKind.BF16
        self._phases: AdaptedPhases | None = None
        self.targets: LowRankTargets | None = None
        """Targets of the program, once it is compiled."""

    @property
    def nbytes(self) -> int:
        size = 4 if self._kind is MatrixKind.F32 else 2
        factors = adapter_bytes(self._modules, self._rank, size)
        return self._most * (factors + whole_bytes(self._whole, size))

    def phases(self, split: Split, layers: range) -> AdaptedPhases:
        """Returns what the program of these layers is compiled with."""
        self._phases = AdaptedPhases(self._modules, self._rank, self._kind, split, layers.start)
        return self._phases

    def hold(self, modules: Fitted) -> LowRankAdapter:
        phases, targets = self._phases, self.targets
        if phases is None or targets is None:
            raise RuntimeError("an adapter came before the program was compiled")
        named = [(at, name) for at, name in enumerate(phases.names) if name and name in modules]
        return LowRankAdapter(
            targets, _factors(modules, phases, named), _whole(modules, phases, named)
        )


_Named = Sequence[tuple[int, str]]
"""Targets, and the modules that they are of."""


def _factors(modules: Fitted, phases: AdaptedPhases, named: _Named) -> Iterator[TargetFactors]:
    for target, name in named:
        module = modules[name]
        if isinstance(module, FittedModule):
            down, up, *scaled = module.parts(*phases.part(name))
            gains, added = (None if each is None else each.numpy() for each in scaled)
            yield TargetFactors(target, down.numpy(), up.numpy(), gains, added)


def _whole(modules: Fitted, phases: AdaptedPhases, named: _Named) -> Iterator[WholeMatrix]:
    for target, name in named:
        module = modules[name]
        if isinstance(module, FittedMatrix):
            outputs, inputs = phases.part(name)
            yield WholeMatrix(target, _chunks(module, inputs if name == EMBEDDING else outputs))


def _chunks(matrix: FittedMatrix, rows: range) -> Iterator[np.ndarray]:
    """A few rows at a time, so that little memory is taken besides."""
    for start in range(rows.start, rows.stop, _CHUNK_ROWS):
        yield matrix.part(range(start, min(start + _CHUNK_ROWS, rows.stop))).numpy()


def adapted_rows(batch: BatchAdapters | None, counts: np.ndarray) -> LowRankRows:
    """Rows with adapters of a batch whose adapters PackedAdapters made."""
    if batch is None:
        return LowRankRows(())
    held = cast("tuple[LowRankAdapter, ...]", batch.held)
    return LowRankRows([(first, rows, held[at]) for first, rows, at in batch.runs(counts)])
