"""Adapters of pooling models: those of layers, and the classification heads that go with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from penstock.adapters import UnfitAdapter
from penstock.errors import UnsupportedModel
from penstock.protocol.to_worker import Setup, SlotWork
from penstock_worker.adapters.adaptable import EMBEDDING
from penstock_worker.adapters.fitting import Fitted, FittedMatrix, FittedModule
from penstock_worker.adapters.interface import BatchAdapters, HeldAdapter, HoldsAdapters
from penstock_worker.adapters.models import AdaptableModel
from penstock_worker.adapters.slot_adapters import AdapterBounds, SlotAdapters
from penstock_worker.pooling.heads import Head
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights

ONE_TYPE = "embed_types"
"""Module of the token types of a model that has but one, whose row is added to every token's."""


@dataclass(frozen=True)
class PooledAdapter:
    """An adapter of a pooling model."""

    layers: HeldAdapter
    head: Head | None
    """The head in the place of the model's own; None: that one counts."""


class PoolAdapters:
    """The adapters of a pooling model's steps."""

    def __init__(self, steps: SlotAdapters | None = None) -> None:
        """`steps` hold a PooledAdapter each; None: none are served."""
        self.steps = steps

    def of_batch(self, works: Sequence[SlotWork]) -> BatchAdapters | None:
        """Returns what layers have of these works' adapters; None for nothing."""
        batch = None if self.steps is None else self.steps.of_batch(works)
        if batch is None:
            return None
        held = cast(tuple[PooledAdapter, ...], batch.held)
        return BatchAdapters(tuple(each.layers for each in held), batch.of_sequence)

    def head_of(self, slot: int, own: Head | None) -> Head | None:
        """Returns the head of a slot's adapter. `own`: the model's."""
        if self.steps is None:
            return own
        held = cast(PooledAdapter | None, self.steps.held_by(slot))
        return own if held is None or held.head is None else held.head


@dataclass(frozen=True)
class AdaptedPooling:
    """What adapters of a pooling model are made with, whatever computes its layers."""

    model: AdaptableModel
    weights: Callable[[], Weights]
    """Opens the model's own weights."""
    head: Callable[[Weights], Head | None]
    """Takes the classification head out of weights."""

    def steps(self, layers: HoldsAdapters, setup: Setup) -> PoolAdapters:
        """`layers`: the half of the backend that computes them."""
        bounds = AdapterBounds(setup.max_loras, setup.max_lora_rank)
        return PoolAdapters(
            SlotAdapters(
                _LayersAndHeads(layers, self, setup.max_lora_rank), self.model, bounds, self.weights
            )
        )


class _LayersAndHeads:
    """A HoldsAdapters of PooledAdapter."""

    def __init__(self, layers: HoldsAdapters, pooling: AdaptedPooling, most_rank: int) -> None:
        self._layers = layers
        self._pooling = pooling
        self._most_rank = most_rank

    @property
    def nbytes(self) -> int:
        return self._layers.nbytes

    def hold(self, modules: Fitted) -> PooledAdapter:
        heads = self._pooling.model.heads
        own = {
            name: module for name, module in modules.items() if name.removesuffix(".bias") in heads
        }
        others: Fitted = {name: each for name, each in modules.items() if name not in own}
        if ONE_TYPE in others:
            others = self._with_type(others)
        return PooledAdapter(self._layers.hold(others), self._head(own) if own else None)

    def _with_type(self, modules: Fitted) -> Fitted:
        """What the token type's row gets, each token's row gets: one rank more of the embedding's
        factors. Raises UnfitAdapter where that is too high a rank."""
        others = dict(modules)
        parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        size, tokens = self._pooling.model.modules[EMBEDDING]
        for name, count in ((EMBEDDING, tokens), (ONE_TYPE, 1)):
            module = others.pop(name, None)
            if not isinstance(module, FittedModule):
                parts.append((torch.zeros(0, count), torch.zeros(size, 0)))
            elif module.lengths is not None:
                raise UnfitAdapter(f"the adapter changes {name} with DoRA, which is not supported")
            else:
                parts.append(module.factors(range(size), range(count)))
        (down, up), (type_down, type_up) = parts
        rank = len(down) + 1
        if rank > self._most_rank:
            raise UnfitAdapter(
                f"the adapter's embeddings of tokens and of their type have rank {rank} together; "
                f"at most {self._most_rank} is allowed (max_lora_rank)"
            )
        others[EMBEDDING] = FittedModule(
            _stored(ONE_TYPE, torch.cat((down, torch.ones(1, tokens)))),
            _stored(ONE_TYPE, torch.cat((up, type_up @ type_down), 1)),
            1.0,
        )
        return others

    def _head(self, modules: Fitted) -> Head | None:
        """A head is small: factors are merged into its matrices, float32."""
        weights = self._pooling.weights()
        changed = {
            name if name.endswith(".bias") else f"{name}.weight": self._tensor(name, each, weights)
            for name, each in modules.items()
        }
        try:
            return self._pooling.head(weights.with_tensors(changed))
        except UnsupportedModel as error:
            raise UnfitAdapter(f"the adapter's head doesn't fit the model: {error}") from None

    def _tensor(
        self, name: str, module: FittedModule | FittedMatrix, weights: Weights
    ) -> StoredTensor:
        if isinstance(module, FittedMatrix):
            values, said = module.part(range(module.stored.shape[0])), module.stored.name
        else:
            outputs, inputs = self._pooling.model.heads[name]
            values = weights.take(f"{name}.weight", (outputs, inputs), torch.float32)
            down, up, gains, _ = module.parts(range(outputs), range(inputs))
            if gains is not None:
                values = values * gains[:, None]
            values, said = values + up @ down, module.up.name
        return _stored(said, values[:, 0] if name.endswith(".bias") else values)


def _stored(said: str, values: torch.Tensor) -> StoredTensor:
    data = values.contiguous().numpy().reshape(-1).view("uint8")
    return StoredTensor(said, tuple(values.shape), "F32", data)
