"""A layer's routed experts alone: their router, and all else of the layer, is elsewhere."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field

import numpy as np

from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.decoder_step import DecoderStep, GivenRows
from penstock_kernels.cpu.library import bits, use
from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.memory import Scratch
from penstock_kernels.cpu.operands import Experts
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind, Program

MOST_ROWS = 512
"""Rows that are computed at a time. Scratch memory is for so many."""
BITS_OF_GROUPS = ("avx512vnni", "avxvnni", "avx2", "neoni8mm", "neon")
"""Instruction sets with a scale for each 32 inputs of every format, the fastest first, which all
compute the same bits."""


def use_bits_of_groups() -> str:
    """Has the library use the best of BITS_OF_GROUPS from now on, and returns its name. Raises
    ImportError where the processor has none."""
    for name in BITS_OF_GROUPS:
        try:
            use(name)
        except ValueError:
            continue
        return name
    raise ImportError(
        f"experts on the CPU need one of the instruction sets {', '.join(BITS_OF_GROUPS)}; the "
        f"processor has none, but {bits()}"
    )


@dataclass(frozen=True)
class CPUExperts:
    """The experts of one layer, with their activation.

    Raises ValueError for matrices that don't fit together, and for more rows than kernels count.
    """

    ups: tuple[PackedMatrix, ...]
    """The up matrix of each expert."""
    downs: tuple[PackedMatrix, ...]
    active: int
    """Experts of a row."""
    gates: tuple[PackedMatrix, ...] = ()
    """The gate matrix of each expert; empty for experts without a gate."""
    activation: str = "silu"
    """One of penstock_kernels.cpu.program.ACTIVATIONS."""
    threads: int = 1
    scratch: Scratch = field(default_factory=Scratch)
    """Layers that are computed one after another may share it."""

    def __post_init__(self) -> None:
        self._decoder  # noqa: B018  The library checks whether it fits together.

    @functools.cached_property
    def _chosen(self) -> np.ndarray:
        return np.zeros((MOST_ROWS, self.active), np.int32)

    @functools.cached_property
    def _decoder(self) -> Decoder:
        return Decoder(
            self._program, 16, 0, cache="float32", threads=self.threads, scratch=self.scratch
        )

    @property
    def _program(self) -> Program:
        width, count = self.ups[0].struct.inputs, len(self.ups)
        experts = Experts(
            active=self.active,
            gates=self.gates,
            ups=self.ups,
            downs=self.downs,
            scoring="given",
            normalised=False,
            by_token=self._chosen,
        )
        taken = functools.partial(Phase, kind=PhaseKind.TAKE_ROWS, adds=False)
        phases = [
            taken(target=Buffer.RESIDUAL, width=width, waits=False),
            taken(target=Buffer.SCORES, first=width, width=count),
            Phase(
                kind=PhaseKind.MAKE_INPUT,
                target=Buffer.INPUT,
                width=width,
                forms=_forms(*self.gates, *self.ups),
                waits=False,
            ),
            Phase(
                kind=PhaseKind.ROUTE,
                experts=experts,
                forms=_forms(*self.gates, *self.ups),
            ),
            Phase(
                kind=PhaseKind.EXPERTS_UP,
                experts=experts,
                activation=self.activation,
                forms=_forms(*self.downs),
            ),
            Phase(kind=PhaseKind.EXPERTS_DOWN, experts=experts),
            Phase(kind=PhaseKind.COMBINE, experts=experts, adds=False),
            Phase(kind=PhaseKind.ROWS, width=width, waits=False),
        ]
        return Program(tuple(phases), vocab=1)

    def __call__(self, x: np.ndarray, chosen: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Returns the weighted sum of each row's experts, [rows, width] float32, added up in the
        experts' order. A row's bits depend on that row alone.

        `x`: [rows, width] float32. `chosen`: [rows, active] int32, ascending. `shares`: [rows,
        active] float32. Raises ValueError for experts that don't exist, or don't ascend.
        """
        count = len(self.ups)
        ascending = (np.diff(chosen, axis=1) > 0).all()
        if len(x) and not (ascending and chosen.min() >= 0 and chosen.max() < count):
            raise ValueError(f"a row's experts ascend and are below {count}")
        out = np.empty_like(x)
        for first in range(0, len(x), MOST_ROWS):
            some = slice(first, first + MOST_ROWS)
            out[some] = self._some(x[some], chosen[some], shares[some])
        return out

    def _some(self, x: np.ndarray, chosen: np.ndarray, shares: np.ndarray) -> np.ndarray:
        rows, width = x.shape
        numbers = np.zeros((rows, width + len(self.ups)), np.float32)
        numbers[:, :width] = x
        np.put_along_axis(numbers[:, width:], chosen.astype(np.int64), shares, axis=1)
        self._chosen[:rows] = chosen
        each = np.arange(rows, dtype=np.int32)
        none = np.zeros(1, np.int32)
        step = DecoderStep(
            tokens=each,
            first_row=np.array([0, rows], np.int32),
            starts=none,
            tables=none,
            first_block=none,
            given=GivenRows(rows=each, numbers=numbers),
        )
        return self._decoder.logits(step, each)


def _forms(*readers: PackedMatrix) -> int:
    return functools.reduce(operator.or_, (each.form for each in readers), 0)
