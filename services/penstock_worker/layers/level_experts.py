"""Routed experts on CUDA whose products have a CPU's bits, so that some layers' experts may lie in
the host's memory, where its processor computes them.

What the two compute is in docs/design/two-places.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock.model.expert_room import rows_worth_a_copy
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec
from penstock.process import logs
from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.memory import Arena, Scratch
from penstock_kernels.cpu.routed_experts import CPUExperts
from penstock_kernels.triton.experts.level_products import LEVEL_TYPES, expert_levels
from penstock_kernels.triton.experts.placing import place_rows
from penstock_kernels.triton.experts.sums import sum_experts
from penstock_kernels.triton.matmul_tiles import expert_tiles
from penstock_kernels.triton.rowwise.row_levels import gate_levels, row_levels
from penstock_worker.device.copy_rates import GB
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.layers.experts import experts_of
from penstock_worker.layers.host_experts import HostExperts, HostLane, PinnedRows
from penstock_worker.layers.parts import Parts
from penstock_worker.layers.streamed_experts import (
    ExpertBuffers,
    StreamedExperts,
)
from penstock_worker.layers.triton_router import TritonRouter
from penstock_worker.metrics.hand_over import HandOverCounts
from penstock_worker.quantisation.gguf.matrix import GGUFMatrix
from penstock_worker.weights.stored import StoredTensor

log = logs.get(__name__)

SOURCES = 8
"""Layers whose experts are copied when that is measured."""


class PlacedExperts(Protocol):
    """The experts of a layer, wherever they are."""

    def __call__(self, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Returns the weighted sum of each row's experts, [rows, width] float32, on the device.

        `hidden`: [rows, width]. `chosen`: [rows, active] int32, ascending. `shares`: [rows,
        active] float32.
        """

    def begin(self, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Callable[[], Tensor]:
        """Begins what `__call__` does, and returns what gives its result."""

    @property
    def together(self) -> int:
        """How many experts are computed together, at most: with all rows, if these have no
        others."""


@dataclass(frozen=True)
class CardExperts:
    """Experts on the card."""

    up: GGUFMatrix
    """The gate and the up matrix of each expert, one below the other."""
    down: GGUFMatrix
    count: int
    activation: str
    up_bias: Tensor | None = None
    """[experts, 2 * inner] float32; None for nothing."""
    down_bias: Tensor | None = None

    def __call__(self, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        count = self.count
        tiles = expert_tiles(chosen.numel(), count, batch_invariant=True, packed=True, exact=True)
        placed = place_rows(chosen, count, tiles.rows)
        product = partial(expert_levels, experts=count, placed=placed, tiles=tiles)
        both = product(row_levels(hidden), self.up, bias=self.up_bias)
        inner = gate_levels(both, self.activation)
        return sum_experts(product(inner, self.down, bias=self.down_bias), shares)

    def begin(self, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Callable[[], Tensor]:
        """Has computed when it returns."""
        found = self(hidden, chosen, shares)
        return lambda: found

    @property
    def together(self) -> int:
        """All."""
        return self.count


class TrialRouting:
    """While it is on, rows have some experts in turn, and those in the host's memory are copied for
    any number of rows: the most memory that a step may take, whatever experts its rows have. A
    trial step's own tokens are all alike, which routers send to a few experts."""

    def __init__(self) -> None:
        self._on = False

    def __bool__(self) -> bool:
        return self._on

    @contextmanager
    def on(self) -> Iterator[None]:
        """It is on while the context is open."""
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def __call__(self, chosen: Tensor, count: int) -> Tensor:
        """Returns rows' experts, [rows, active] int32, ascending: `chosen` itself while it is off.
        `count`: of the experts that take turns, at least `active`."""
        if not self._on:
            return chosen
        rows, active = chosen.shape
        first = active * torch.arange(rows, device=chosen.device)
        found = (first[:, None] + torch.arange(active, device=chosen.device)) % count
        return found.sort(1).values.int()


@dataclass
class ExpertHost:
    """What the layers whose experts are in the host's memory have in common."""

    device: torch.device
    threads: int
    on_host: frozenset[str]
    """Beginnings of the names of such layers' tensors."""
    counts: HandOverCounts = field(default_factory=HandOverCounts)
    scratch: Scratch = field(default_factory=Scratch)
    arena: Arena = field(default_factory=Arena)
    nbytes: int = 0
    """Bytes of experts that have been read."""
    trial: TrialRouting = field(default_factory=TrialRouting)
    _pinned: dict[tuple[int, int], PinnedRows] = field(default_factory=dict)
    _streamed: list[StreamedExperts] = field(default_factory=list)

    @cached_property
    def buffers(self) -> ExpertBuffers:
        """What experts are copied to the card through."""
        return ExpertBuffers(self.device, self.threads)

    @cached_property
    def lane(self) -> HostLane:
        """Where the host computes."""
        return HostLane(self.device, self.counts)

    def pinned(self, width: int, active: int) -> PinnedRows:
        """Returns what rows of that size go through."""
        key = width, active
        if key not in self._pinned:
            self._pinned[key] = PinnedRows(self.device, width, active)
        return self._pinned[key]

    def finish(self) -> None:
        """Takes the memory that experts are copied through, measures how fast they are, and says in
        the log what the host holds. After all layers have been loaded."""
        self.buffers.allocate()
        if self._streamed:
            self._measure()
        log.info(
            "routed experts have a CPU's bits",
            layers_on_the_host=len(self.on_host),
            host_mib=self.nbytes >> 20,
            pinned_mib=self._pinned_bytes >> 20,
            threads=self.threads,
        )

    def _measure(self) -> None:
        some = [each.some() for each in self._streamed[:SOURCES]]
        rates = self.buffers.measure(some)
        assumed = f"{self.buffers.rate / GB:.0f} GB/s, which is assumed"
        log.info(
            "experts are copied to the card where that is sooner",
            rate=assumed if rates is None else str(rates),
            rows_worth_a_copy=self._streamed[0].threshold,
        )

    @property
    def _pinned_bytes(self) -> int:
        return self.buffers.nbytes + sum(each.nbytes for each in self._pinned.values())

    def load(self, parts: Parts, feed_forward: FeedForwardSpec, prefix: str) -> RoutedByLevels:
        """Loads a layer's router and experts, whose tensors' names begin with `prefix`. Raises
        StartupError for experts of a type without a CPU's bits on the card."""
        spec = experts_of(feed_forward)
        stored = _Stored(parts, feed_forward, spec, f"{prefix}.experts")
        stored.check()
        router = TritonRouter.load(parts, spec, prefix)
        read = self._on_host if prefix in self.on_host else _on_card
        return RoutedByLevels(router, read(stored), self.trial)

    def _on_host(self, stored: _Stored) -> PlacedExperts:
        packing = CPUPacking(stored.parts.weights, self.threads, self.arena)
        gates, ups, downs = (stored.packed(packing, name) for name in _NAMES)
        self.nbytes += sum(each.size for each in (*gates, *ups, *downs))
        experts = CPUExperts(
            gates=gates,
            ups=ups,
            downs=downs,
            active=stored.spec.active,
            activation=stored.feed_forward.activation,
            threads=self.threads,
            scratch=self.scratch,
        )
        size = sum(each[0].size for each in (gates, ups, downs))
        weights = 3 * stored.width * stored.spec.inner
        streamed = StreamedExperts(
            gates,
            ups,
            downs,
            stored.feed_forward.activation,
            self.buffers,
            self.counts,
            lambda: self._worth_a_copy(size, weights),
        )
        self._streamed.append(streamed)
        rows, pairs = (self.pinned(stored.width, each) for each in (stored.spec.active, 1))
        return HostExperts(experts, rows, pairs, streamed, self.lane)

    def _worth_a_copy(self, nbytes: int, weights: int) -> int:
        if self.trial:
            return 1
        return rows_worth_a_copy(nbytes, weights, self.threads, self.buffers.rate)


_NAMES = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class _Stored:
    """The matrices of a layer's experts, in their file."""

    parts: Parts
    feed_forward: FeedForwardSpec
    spec: ExpertsSpec
    prefix: str

    @property
    def width(self) -> int:
        """Numbers of what experts read."""
        return self.spec.width(self.parts.config.hidden_size)

    def shape(self, name: str) -> tuple[int, int]:
        """Returns (outputs, inputs)."""
        inner = self.spec.inner
        return (self.width, inner) if name == "down_proj" else (inner, self.width)

    def check(self) -> None:
        """Raises StartupError for a type without a CPU's bits on the card."""
        for name, each in self._tensors():
            if each.format not in LEVEL_TYPES:
                raise StartupError(
                    f"cpu_experts: tensor {name} is stored as {each.format}; allowed are "
                    f"{', '.join(LEVEL_TYPES)}"
                )

    def _tensors(self) -> Iterator[tuple[str, StoredTensor]]:
        for name, shape in self._all(_NAMES, "weight", self.shape):
            yield name, self.parts.weights.stored(name, shape)

    def packed(self, packing: CPUPacking, name: str) -> tuple[PackedMatrix, ...]:
        outputs, inputs = self.shape(name)
        return tuple(
            packing.matrix(
                f"{self.prefix}.{number}.{name}",
                outputs,
                inputs,
                kind=None,
                bias=self.feed_forward.bias,
            )
            for number in range(self.spec.count)
        )

    def stacked(self, names: tuple[str, ...]) -> GGUFMatrix:
        """Returns matrices of all experts, those of each one below the other."""
        found = self.parts.weights.take_experts(self._all(names, "weight", self.shape))
        if not isinstance(found, GGUFMatrix):
            raise StartupError(
                f"cpu_experts: {' and '.join(names)} of {self.prefix} are of several types, which "
                "the card's kernels don't take together; more layers on the CPU (all) do without"
            )
        return found

    def biases(self, names: tuple[str, ...]) -> Tensor | None:
        """Returns [experts, outputs] float32, or None."""
        if not self.feed_forward.bias:
            return None
        parts = self._all(names, "bias", lambda name: self.shape(name)[:1])
        taken = self.parts.weights.take_stacked(parts, torch.float32)
        return taken.unflatten(0, (self.spec.count, -1))

    def _all(
        self, names: tuple[str, ...], kind: str, shape: Callable[[str], tuple[int, ...]]
    ) -> list[tuple[str, tuple[int, ...]]]:
        return [
            (f"{self.prefix}.{number}.{name}.{kind}", shape(name))
            for number in range(self.spec.count)
            for name in names
        ]


def _on_card(stored: _Stored) -> PlacedExperts:
    return CardExperts(
        stored.stacked(_NAMES[:2]),
        stored.stacked(_NAMES[2:]),
        stored.spec.count,
        stored.feed_forward.activation,
        stored.biases(_NAMES[:2]),
        stored.biases(_NAMES[2:]),
    )


class RoutedByLevels:
    """LayerExperts whose router is on the card."""

    def __init__(self, router: TritonRouter, experts: PlacedExperts, trial: TrialRouting) -> None:
        self.router = router
        self.experts = experts
        self._trial = trial

    def __call__(
        self, hidden: Tensor, routed: Tensor | None = None, chosen: Tensor | None = None
    ) -> Tensor:
        return self.begin(hidden, routed, chosen)()

    def begin(
        self, hidden: Tensor, routed: Tensor | None = None, chosen: Tensor | None = None
    ) -> Callable[[], Tensor]:
        """As LayerExperts has it."""
        if chosen is not None:
            raise TypeError("these experts are chosen by their router alone")
        found, shares = self.router(hidden if routed is None else routed)
        return self.experts.begin(hidden, self._trial(found, self.experts.together), shares)
