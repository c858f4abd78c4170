"""What a step does, as data: phases over named buffers, which the C++ library runs in one call.

What each kind of phase reads is said in csrc/program_types.h, at PkPhaseKind. A program knows no
family and no layer: its compiler decides the order of phases.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from penstock_kernels.cpu.low_rank import LowRankTargets
from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.operands import Attention, ByHead, Experts, NormWeights
from penstock_kernels.cpu.recurrent import Recurrent
from penstock_kernels.cpu.streams import CPUMixing, CPUStreams
from penstock_kernels.cpu.structs import (
    NUM_BUFFERS,
    PkAttention,
    PkMatrix,
    PkNorm,
    PkPhase,
)


class Buffer(enum.IntEnum):
    """What phases read and write (PkBuffer)."""

    RESIDUAL = 0
    QUERIES = 1
    KEYS = 2
    MIXED = 3
    RESULT = 4
    SCORES = 5
    LAYER_INPUTS = 6
    STREAMS = 7
    INPUT = 8
    INNER = 9


class PhaseKind(enum.IntEnum):
    """What a phase does (PkPhaseKind)."""

    EMBED = 0
    MAKE_INPUT = 1
    HEADS = 2
    PLACE = 3
    ATTEND = 4
    PRODUCT = 5
    GATE_UP = 6
    ADD_NORM = 7
    LOGITS = 8
    ROUTE = 9
    EXPERTS_UP = 10
    EXPERTS_DOWN = 11
    COMBINE = 12
    PLACE_LATENT = 13
    BY_HEAD = 14
    EXCHANGE = 15
    LOOK_UP = 16
    NORM = 17
    ROWS = 18
    SCALE = 19
    INPUTS_OF_LAYERS = 20
    GATE_BY = 21
    CUT_GATE = 22
    BEGIN_STREAMS = 23
    PREDICT = 24
    JOIN_PATH = 25
    CORRECT = 26
    ADD_TO_OTHERS = 27
    END_STREAM = 28
    CONVOLVE = 29
    SCAN = 30
    TAKE_ROWS = 31
    LOWER = 32
    PLACE_INDEX = 33
    INDEX = 34
    CHOOSE = 35
    SPREAD = 36
    MIX_LOGITS = 37
    MIX_READ = 38
    MIX_WRITE = 39
    PLACE_ENTRIES = 40
    MAKE_ENTRIES = 41
    ATTEND_ENTRIES = 42


ACTIVATIONS = {
    "silu": 0,
    "gelu": 1,
    "gelu_tanh": 2,
    "relu2": 3,
    "clamped_swiglu": 4,
    "quick_gelu": 5,
    "xielu": 6,
}
"""Numbers of the activations (PkActivation), by name."""

Exchange = Callable[[np.ndarray], None]
"""Completes values, [rows, width] float32 in the step's own memory, by what other ranks have
computed of them. What it raises ends the step."""

ResultsExchange = Callable[[np.ndarray, np.ndarray], None]
"""Completes what experts give, [places, width] float32, in the same way. The second array, [experts
+ 1], says where the places of each expert begin, one for each row that chose it."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase. Which fields count depends on its kind."""

    kind: PhaseKind
    source: Buffer = Buffer.RESIDUAL
    target: Buffer = Buffer.RESIDUAL
    width: int = 0
    forms: int = 0
    """Bits of PackedMatrix.form: how the products that read the target want it."""
    waits: bool = True
    """Whether all threads wait for each other after the phase."""
    ends_layer: bool = False
    whole: bool = False
    """Whether norms of HEADS are over all heads, by a PLACE after it."""
    adds: bool = True
    weighed: bool = False
    """Whether GATE_UP multiplies a row by the logistic function of its first number in SCORES."""
    part: bool = False
    """Whether the phase computes some of the `width` columns of its target, from `first` on."""
    first: int = 0
    """For LOOK_UP the row of a sequence's first position; -1: rows are the tokens' types. For
    MAKE_INPUT the first column of the source, for GATE_BY that of `beside`, for TAKE_ROWS that of
    what is given."""
    first_key: int = 0
    """First column of KEYS for HEADS and PLACE, whose first one of QUERIES is `first`."""
    key_width: int = 0
    columns: int = 0
    """How many a COMBINE computes; 0: as many as its experts give."""
    gates: int = 0
    """How many gates RESULT has, each for as many numbers, for a MAKE_INPUT."""
    soft_gates: bool = False
    """Whether their softplus weighs, instead of their logistic function."""
    exchange: Exchange | None = None
    """What an EXCHANGE calls."""
    exchange_results: ResultsExchange | None = None
    """What an EXCHANGE of experts' results calls."""
    alone: bool = False
    """Whether an EXCHANGE waits for no other rank."""
    low_rank: int = -1
    """Which of LowRankTargets belongs to the first of `matrices`, the next ones to the others; -1:
    adapters change none."""
    only_wanted: bool = False
    """Whether rows whose output isn't needed may be left out; of HEADS, their queries."""
    beside: Buffer = Buffer.RESIDUAL
    """What GATE_BY and JOIN_PATH read as well, and PLACE_ENTRIES rotates as well."""
    activation: str = "silu"
    scale: float = 1.0
    soft_cap: float | None = None
    limit: float | None = None
    """What the activation of GATE_UP and EXPERTS_UP gives at most; up lies within it, too. Of
    HEADS, what queries, keys and values lie within."""
    gate_limit: float | None = None
    """What the gate is at most before its activation; up lies within it, too."""
    xielu: tuple[float, float, float, float] | None = None
    """The coefficients of GATE_UP's activation, if that is xielu (see reference.xielu)."""
    norm: NormWeights | None = None
    other_norm: NormWeights | None = None
    third_norm: NormWeights | None = None
    streams: CPUStreams | None = None
    mixing: CPUMixing | None = None
    attention: Attention | None = None
    experts: Experts | None = None
    by_head: ByHead | None = None
    recurrent: Recurrent | None = None
    matrices: tuple[PackedMatrix | None, ...] = ()

    @property
    def calls_ranks(self) -> bool:
        """Whether it waits for other ranks."""
        exchanges = self.exchange is not None or self.exchange_results is not None
        return exchanges and not self.alone

    def needs(self) -> Iterator[tuple[Buffer, int]]:
        """Yields the buffers that the phase writes, and how wide they must be."""
        first = self.matrices[0] if self.matrices else None
        match self.kind:
            case PhaseKind.EMBED if first is not None:
                yield self.target, first.struct.inputs
            case PhaseKind.MAKE_INPUT:
                yield Buffer.INPUT, self.width
            case PhaseKind.HEADS if self.attention is not None:
                yield Buffer.QUERIES, self._whole(self.attention.heads * self.attention.head_dim)
                if self.whole:
                    own = self.attention.kv_heads * self.attention.head_dim
                    yield Buffer.KEYS, self.key_width if self.part else own
            case PhaseKind.ATTEND if self.attention is not None:
                yield Buffer.MIXED, self._whole(self.attention.heads * self.attention.value_dim)
            case PhaseKind.PLACE_LATENT if self.attention is not None:
                yield Buffer.QUERIES, self.attention.heads * self.attention.head_dim
            case PhaseKind.BY_HEAD if self.by_head is not None:
                yield self.target, len(self.by_head.matrices) * self.by_head.target_stride
            case PhaseKind.PRODUCT if first is not None:
                yield self.target, self._whole(first.struct.outputs)
            case PhaseKind.GATE_UP if self.matrices[1] is not None:
                yield Buffer.INNER, self._whole(self.matrices[1].struct.outputs)
            case PhaseKind.SCAN if self.recurrent is not None:
                yield Buffer.MIXED, self.recurrent.width
            case PhaseKind.LOGITS if first is not None:
                yield Buffer.INPUT, first.struct.inputs
            case PhaseKind.EXCHANGE if self.experts is None:
                yield self.source, self.width
            case PhaseKind.NORM:
                yield self.target, self.width
            case PhaseKind.TAKE_ROWS if not self.adds:
                yield self.target, self.width
            case PhaseKind.INPUTS_OF_LAYERS if first is not None:
                yield self.target, first.struct.inputs
            case PhaseKind.GATE_BY:
                matrix = first or self.matrices[1]
                yield Buffer.INNER, 0 if matrix is None else matrix.struct.outputs
            case PhaseKind.BEGIN_STREAMS if self.streams is not None:
                yield Buffer.STREAMS, self.streams.whole
            case PhaseKind.SPREAD if self.mixing is not None:
                yield Buffer.STREAMS, self.mixing.whole
            case PhaseKind.MIX_LOGITS if self.mixing is not None:
                yield self.target, self.mixing.logits
            case PhaseKind.MIX_READ:
                yield self.target, self.width
            case PhaseKind.ATTEND_ENTRIES if self.attention is not None:
                yield Buffer.MIXED, self.attention.heads * self.attention.head_dim

    def _whole(self, own: int) -> int:
        """Returns the target's width; the phase computes `own` columns of it."""
        return self.width if self.part else own

    def fill(self, struct: PkPhase, attentions: dict[int, PkAttention]) -> None:
        """Fills the library's struct. `attentions`: by layer."""
        for name in _NUMBERS:
            setattr(struct, name, int(getattr(self, name)))
        struct.activation = ACTIVATIONS[self.activation]
        struct.scale = self.scale
        struct.soft_cap = self.soft_cap or 0.0
        struct.limit = self.limit or 0.0
        struct.gate_limit = self.gate_limit or 0.0
        struct.xielu[:] = self.xielu or (0.0, 0.0, 0.0, 0.0)
        for name in ("norm", "other_norm", "third_norm"):
            norm: NormWeights | None = getattr(self, name)
            setattr(struct, name, PkNorm() if norm is None else norm.struct())
        if self.streams is not None:
            struct.streams = ctypes.pointer(self.streams.struct())
        if self.mixing is not None:
            struct.mixing = ctypes.pointer(self.mixing.struct())
        if self.attention is not None:
            struct.attention = ctypes.pointer(attentions[self.attention.layer])
        if self.experts is not None:
            struct.experts = ctypes.pointer(self.experts.struct())
        if self.by_head is not None:
            struct.by_head = ctypes.pointer(self.by_head.struct())
        if self.recurrent is not None:
            struct.recurrent = ctypes.pointer(self.recurrent.struct())
        for at, matrix in enumerate(self.matrices):
            struct.matrices[at] = PkMatrix() if matrix is None else matrix.struct


_NUMBERS = (
    *("kind", "source", "target", "width", "forms", "waits", "ends_layer", "whole", "adds"),
    *("weighed", "part", "first", "first_key", "key_width", "beside", "gates"),
    *("low_rank", "only_wanted", "soft_gates", "columns"),
)


_BY_ROWS = frozenset(
    {
        *(PhaseKind.MAKE_INPUT, PhaseKind.ATTEND, PhaseKind.PRODUCT, PhaseKind.GATE_UP),
        *(PhaseKind.ROUTE, PhaseKind.EXPERTS_UP, PhaseKind.EXPERTS_DOWN, PhaseKind.COMBINE),
        *(PhaseKind.ADD_NORM, PhaseKind.NORM, PhaseKind.SCALE, PhaseKind.GATE_BY),
    }
)
"""Phases in which a row needs nothing of what earlier ones have left of other rows, but for keys
and values."""
_FOR_WANTED = frozenset({PhaseKind.LOGITS, PhaseKind.ROWS, PhaseKind.LOWER})
"""Phases that read other rows than those wanted only for nothing."""


def only_wanted(phases: Sequence[Phase]) -> Iterator[Phase]:
    """Yields the phases of a program. Of prompts, few rows are wanted; after the last phase that
    leaves something for other rows, mostly the last layer's keys and values, no others are
    computed."""
    first = len(phases)
    while first and _by_rows(phases[first - 1]):
        first -= 1
    if first and phases[first - 1].kind is PhaseKind.HEADS and not phases[first - 1].whole:
        first -= 1
    for number, phase in enumerate(phases):
        left_out = number >= first and phase.kind not in _FOR_WANTED
        yield replace(phase, only_wanted=True) if left_out else phase


def _by_rows(phase: Phase) -> bool:
    only_queries = phase.kind is PhaseKind.HEADS and len(phase.matrices) == 1 and not phase.whole
    return only_queries or phase.kind in _BY_ROWS | _FOR_WANTED


@dataclass(frozen=True)
class Program:
    """What a step does, in order."""

    phases: tuple[Phase, ...]
    vocab: int
    """Logits of a row."""
    low_rank: LowRankTargets | None = None
    """What adapters may change; None: there are none."""

    @property
    def outputs(self) -> int:
        """Numbers of a row of what a step gives: logits, or what ROWS copies."""
        last = self.phases[-1]
        return last.width if last.kind is PhaseKind.ROWS else self.vocab

    @cached_property
    def attentions(self) -> tuple[Attention, ...]:
        """Attention of each layer that has one, in the order of layers."""
        found = {each.attention.layer: each.attention for each in self.phases if each.attention}
        return tuple(found[layer] for layer in sorted(found))

    @cached_property
    def state_numbers(self) -> int:
        """Numbers of a sequence's state in all recurrent layers."""
        return max((each.state + each.state_numbers for each in self._recurrent), default=0)

    @cached_property
    def last_numbers(self) -> int:
        """Numbers of what all scans give for a token."""
        return max((each.last + each.width for each in self._recurrent), default=0)

    @cached_property
    def taken_numbers(self) -> int:
        """Numbers that are taken of a row that has some of its own."""
        taken = (each for each in self.phases if each.kind is PhaseKind.TAKE_ROWS)
        return max((each.first + each.width for each in taken), default=0)

    @cached_property
    def angles(self) -> int | None:
        """Positions of the rotary tables whose pairs have axes; None: there are none."""
        tables = (each.rotation for each in self.attentions if each.rotation is not None)
        return min((len(each.cosines) for each in tables if each.axes is not None), default=None)

    @property
    def _recurrent(self) -> Iterator[Recurrent]:
        return (each.recurrent for each in self.phases if each.recurrent is not None)

    def widths(self) -> list[int]:
        """Returns the width of each buffer; 0 for one that isn't used."""
        widths = [0] * NUM_BUFFERS
        for phase in self.phases:
            for buffer, width in phase.needs():
                widths[buffer] = max(widths[buffer], width)
        return widths

    def structs(self, caches: Sequence[tuple[np.ndarray, ...]]) -> ctypes.Array[PkPhase]:
        """Returns the library's phases. `caches`: keys and values for each layer of the cache, and
        in a model with entries, these, [blocks, bytes] uint8. All arrays must outlive what is
        returned."""
        attentions = {
            each.layer: each.struct(*caches[each.cache_layer]) for each in self.attentions
        }
        structs = (PkPhase * len(self.phases))()
        for phase, struct in zip(self.phases, structs, strict=True):
            phase.fill(struct, attentions)
        return structs
