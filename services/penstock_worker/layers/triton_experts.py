"""A mixture of experts on CUDA: rows are ordered by expert on the device, in shapes that depend on
their number alone, and each expert's matrices multiply its rows in tiles of one shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec
from penstock.process import logs
from penstock_kernels.triton.experts.fp8_products import expert_fp8
from penstock_kernels.triton.experts.gguf_products import expert_gguf
from penstock_kernels.triton.experts.placing import ExpertTiles, place_rows
from penstock_kernels.triton.experts.products import expert_linear
from penstock_kernels.triton.experts.sums import sum_experts
from penstock_kernels.triton.matmul_tiles import EXPERTS_FP8, MatmulTiles, expert_tiles
from penstock_worker.adapters.device_adapters import DeviceAdapters
from penstock_worker.adapters.device_products import DeviceAdaptedExperts
from penstock_worker.layers.experts import experts_of
from penstock_worker.layers.parts import ExpertsAtOnce, Parts
from penstock_worker.layers.triton_router import TritonRouter
from penstock_worker.quantisation.fp8 import FP8Blocks, FP8Rows
from penstock_worker.quantisation.gguf.matrix import GGUFMatrix

log = logs.get(__name__)

ExpertProduct = Callable[[Tensor, ExpertTiles, MatmulTiles], Tensor]
"""Maps rows, [rows, inputs], or a row for each pair, to [pairs, outputs]."""


@dataclass(frozen=True)
class PlainExperts:
    """A matrix of each expert, as plain numbers."""

    weight: Tensor
    """The matrices, [experts, outputs, inputs]."""
    bias: Tensor | None
    """What is added to each expert's outputs, [experts, outputs]; None for nothing."""

    def __call__(self, x: Tensor, placed: ExpertTiles, tiles: MatmulTiles) -> Tensor:
        return expert_linear(x, self.weight, placed, self.bias, tiles=tiles)


@dataclass(frozen=True)
class PackedExperts:
    """A matrix of each expert, packed as the file has it."""

    weights: GGUFMatrix
    """The rows of all experts."""
    experts: int
    bias: Tensor | None
    """What is added to each expert's outputs, [experts, outputs]; None for nothing."""

    def __call__(self, x: Tensor, placed: ExpertTiles, tiles: MatmulTiles) -> Tensor:
        return expert_gguf(x, self.weights, self.experts, placed, self.bias, tiles=tiles)


@dataclass(frozen=True)
class AddedToExperts:
    """What rows' adapters add to the products of a layer's experts."""

    up: DeviceAdaptedExperts | None
    """Adds to gates and what they multiply; None: nothing."""
    down: DeviceAdaptedExperts | None

    @staticmethod
    def of(
        parts: Parts, spec: ExpertsSpec, prefix: str, names: tuple[str, ...]
    ) -> AddedToExperts | None:
        """`names`: of what an expert's first product has side by side. None: there are no
        adapters."""
        adapters, hidden = parts.adapters, spec.width(parts.config.hidden_size)
        if not isinstance(adapters, DeviceAdapters):
            return None
        inner = len(parts.shard.inner_of(spec.inner))

        def of_each(*names: str) -> list[list[str]]:
            return [[f"{prefix}.{each}.{name}" for name in names] for each in range(spec.count)]

        return AddedToExperts(
            adapters.experts(of_each(*names), [inner] * len(names), hidden),
            adapters.experts(of_each("down_proj"), [hidden], inner),
        )


@dataclass(frozen=True)
class FP8Experts:
    """A matrix of each expert in FP8."""

    levels: Tensor
    """[experts, outputs, inputs] float8_e4m3fn."""
    scales: Tensor
    """Scales of the matrices, [experts, outputs, 1 or inputs / 128, rounded up] float32."""
    bias: Tensor | None
    """What is added to each expert's outputs, [experts, outputs]; None for nothing."""

    def __call__(self, x: Tensor, placed: ExpertTiles, tiles: MatmulTiles) -> Tensor:
        mine = EXPERTS_FP8[tiles.rows]
        return expert_fp8(x, self.levels, self.scales, placed, self.bias, tiles=mine)

    @staticmethod
    def of(weight: FP8Rows | FP8Blocks, experts: int, bias: Tensor | None) -> FP8Experts:
        """`weight`: the rows of all experts."""
        levels = weight.levels.unflatten(0, (experts, -1))
        return FP8Experts(levels, weight.scales.view(*levels.shape[:2], -1), bias)


class TritonExperts(ExpertsAtOnce):
    """LayerExperts by the kernels of `penstock_kernels.triton.experts`."""

    def __init__(
        self,
        router: TritonRouter,
        up: ExpertProduct,
        activate: Callable[[Tensor], Tensor],
        down: ExpertProduct,
        *,
        batch_invariant: bool,
        weighs_input: bool = False,
        added: AddedToExperts | None = None,
    ) -> None:
        """`up` gives a pair's gate and what it multiplies, or without a gate only this; `activate`
        makes the input of `down` of it. `weighs_input`: as in ExpertsSpec. `added`: to both
        products."""
        self._router = router
        self._up = up
        self._activate = activate
        self._down = down
        self._packed = any(isinstance(each, PackedExperts) for each in (up, down))
        self._batch_invariant = batch_invariant
        self._weighs_input = weighs_input
        self._added = added or AddedToExperts(None, None)

    def __call__(
        self, hidden: Tensor, routed: Tensor | None = None, chosen: Tensor | None = None
    ) -> Tensor:
        if chosen is not None:
            raise TypeError("these experts are chosen by their router alone")
        rule = self._router.rule
        found, weights = self._router(hidden if routed is None else routed)
        tiles = expert_tiles(
            found.numel(),
            rule.count,
            batch_invariant=self._batch_invariant,
            packed=self._packed,
        )
        placed = place_rows(found, rule.count, tiles.rows)
        if self._weighs_input:
            hidden = (hidden.float()[:, None] * weights[:, :, None]).to(hidden.dtype).flatten(0, 1)
            weights = torch.ones_like(weights)
        up, added = self._up(hidden, placed, tiles), self._added
        if added.up is not None:
            added.up.add(hidden, up, placed)
        inner = self._activate(up)
        down = self._down(inner, placed, tiles)
        if added.down is not None:
            added.down.add(inner, down, placed)
        return sum_experts(down, weights)

    @staticmethod
    def load(
        parts: Parts,
        feed_forward: FeedForwardSpec,
        prefix: str,
        dtype: torch.dtype,
        *,
        batch_invariant: bool,
    ) -> TritonExperts:
        spec, gated = experts_of(feed_forward), feed_forward.gated
        router = TritonRouter.load(parts, spec, prefix)
        stack = _Stack(parts, spec.count, f"{prefix}.experts", dtype)
        hidden, bias = spec.width(parts.config.hidden_size), feed_forward.bias
        names = ("gate_proj", "up_proj") if gated else ("up_proj",)
        up = stack.matrices(names, spec.inner, hidden, bias=bias)
        # Of a sum over ranks, one rank adds the bias.
        own = bias and parts.ranks.place.tensor_rank == 0
        down = stack.matrices(("down_proj",), hidden, spec.inner, bias=own)

        def activate(x: Tensor) -> Tensor:
            return parts.ops.activate(x, feed_forward.activation, gated=gated)

        return TritonExperts(
            router,
            up,
            activate,
            down,
            batch_invariant=batch_invariant,
            weighs_input=spec.weighs_input,
            added=AddedToExperts.of(parts, spec, f"{prefix}.experts", names),
        )


@dataclass(frozen=True)
class _Stack:
    """The tensors of all experts of a layer."""

    parts: Parts
    count: int
    prefix: str
    dtype: torch.dtype

    def matrices(
        self, names: tuple[str, ...], outputs: int, inputs: int, *, bias: bool
    ) -> ExpertProduct:
        """Reads matrices of all experts, those of each one below the other. They stay as they are
        in the file if all are of one of GGUF's types, of levels as these have them, or FP8."""
        weights, all_names = self.parts.weights, self._all(names, "weight", (outputs, inputs))
        weight, added = weights.take_experts(all_names), None
        if bias:
            added = weights.take_stacked(self._all(names, "bias", (outputs,)))
            added = added.to(self.dtype).unflatten(0, (self.count, -1))
        if isinstance(weight, GGUFMatrix):
            return PackedExperts(weight, self.count, added)
        if isinstance(weight, FP8Rows | FP8Blocks):
            return FP8Experts.of(weight, self.count, added)
        if not isinstance(weight, Tensor):
            log.warning(
                "experts are unpacked: they are of several types, or of one without a kernel",
                experts=self.prefix,
                matrices=names,
            )
            weight = weights.take_stacked(all_names)
        return PlainExperts(weight.to(self.dtype).unflatten(0, (self.count, -1)), added)

    def _all(
        self, names: tuple[str, ...], kind: str, shape: tuple[int, ...]
    ) -> list[tuple[str, tuple[int, ...]]]:
        return [
            (f"{self.prefix}.{number}.{name}.{kind}", shape)
            for number in range(self.count)
            for name in names
        ]
