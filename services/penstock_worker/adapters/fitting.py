"""Fits an adapter's modules to a model's, by name and shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from penstock.adapters import AdaptedModule, Adapter, StoredFactor, UnfitAdapter
from penstock.errors import UnsupportedModel
from penstock_worker.adapters.adaptable import EMBEDDING, HEAD
from penstock_worker.adapters.expert_factors import ExpertCuts
from penstock_worker.adapters.models import AdaptableModel
from penstock_worker.weights.stored import StoredTensor
from penstock_worker.weights.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

# Rows with lengths of their own: DoRA (Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation",
# 2024).
#
# The matrix W + scale * B A gets other rows: each is multiplied by what makes its length the one
# that the adapter says. Lengths without the adapter are read from the model's files, once, when it
# is loaded.

_BLOCK = 256
"""Rows that are read together. Blocks begin at multiples, so that ranks find the same lengths."""


@dataclass(frozen=True)
class RowLengths:
    """What an adapter says of a module's rows."""

    name: str
    """Our name of the module."""
    shape: tuple[int, int]
    """(outputs, inputs) of its matrix."""
    wanted: StoredTensor
    """The lengths that the rows are to have, [outputs, 1]."""
    weights: Weights
    """The model's own."""
    matrix: str
    """Our name of the module whose matrix it has: a tied head has the embedding's."""

    def gains(self, rows: range, down: Tensor, up: Tensor, scale: float) -> Tensor:
        """Returns what these rows of W + scale * up down are multiplied by, [rows] float32. `down`
        and `up` are the whole factors, float32. Raises UnfitAdapter for lengths that aren't
        finite."""
        outputs, inputs = self.shape
        stored = self.weights.source(f"{self.matrix}.weight", self.shape)
        wanted = torch.empty(outputs, 1)
        self.wanted.read_into(wanted)
        found = torch.empty(outputs)
        first = rows.start // _BLOCK * _BLOCK
        for start in range(first, rows.stop, _BLOCK):
            block = range(start, min(start + _BLOCK, outputs))
            matrix = torch.empty(len(block), inputs)
            stored.read_part_into(matrix, (block, range(inputs)), torch.Tensor.copy_)
            changed = matrix.double()
            changed += scale * (up[block.start : block.stop].double() @ down.double())
            length = changed.square().sum(1).sqrt()
            part = slice(block.start, block.stop)
            found[part] = (wanted[part, 0].double() / length).float()
        own = found[rows.start : rows.stop]
        if not own.isfinite().all():
            raise UnfitAdapter(
                f"the adapter's tensor {self.wanted.name} gives row norms that are zero or not "
                "finite"
            )
        return own

    def kept_bias(self, rows: range, gains: Tensor) -> Tensor:
        """Returns what is added to products so that their bias is as it was, [rows] float32."""
        name = f"{self.name}.bias"
        if not self.weights.has(name):
            return torch.zeros(len(rows))
        bias = torch.empty(self.shape[0])
        self.weights.stored(name, (self.shape[0],)).read_into(bias)
        return bias[rows.start : rows.stop] * (1 - gains)


_MOST_NAMES = 12
"""Most names that a message lists."""
_LARGEST = float.fromhex("0x1.fep127")
"""The largest number of bfloat16."""
_LAYER = re.compile(r"^(encoder\.)?layers?\.\d+\.")
_EXPERT = re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True)
class FittedModule:
    """An adapter's factors for one of our modules, still in the file."""

    down: StoredTensor
    """A, [rank, inputs]."""
    up: StoredTensor
    """B, [outputs, rank], whose rows are in our order."""
    scale: float
    lengths: RowLengths | None = None
    """Lengths of the rows (DoRA); None without DoRA."""

    def factors(self, rows: range, columns: range) -> tuple[Tensor, Tensor]:
        """Returns A of some columns, and B of some rows times the scale, both float32. Raises
        UnfitAdapter for numbers that aren't finite."""
        rank = self.down.shape[0]
        down = finite_part(self.down, range(rank), columns)
        up = finite_part(self.up, rows, range(rank)).mul_(self.scale)
        return down, self._bounded(up)

    def parts(self, rows: range, columns: range) -> ModuleParts:
        """Returns A of some columns and B of some rows, as `factors` does, with what DoRA does."""
        down, up = self.factors(rows, columns)
        if self.lengths is None:
            return ModuleParts(down, up)
        (rank, inputs), outputs = self.down.shape, self.up.shape[0]
        whole_down = finite_part(self.down, range(rank), range(inputs))
        whole_up = finite_part(self.up, range(outputs), range(rank))
        gains = self.lengths.gains(rows, whole_down, whole_up, self.scale)
        added = self.lengths.kept_bias(rows, gains)
        return ModuleParts(down, self._bounded(up.mul_(gains[:, None])), gains, added)

    def _bounded(self, up: Tensor) -> Tensor:
        """Raises UnfitAdapter for numbers that became infinite when they were multiplied."""
        if not up.isfinite().all():
            raise UnfitAdapter(
                f"the adapter's values are too large: {self.up.name} times its scale"
            )
        return up


class ModuleParts(NamedTuple):
    """What a module's product with x becomes: gains * product + added + up (down x); float32."""

    down: Tensor
    """A, [rank, inputs]."""
    up: Tensor
    """[outputs, rank], times scale and gains."""
    gains: Tensor | None = None
    """[outputs], where rows have lengths of their own; None: they are ones."""
    added: Tensor | None = None
    """[outputs], with `gains`: so that a bias stays as it was."""


@dataclass(frozen=True)
class FittedMatrix:
    """A matrix that stands in the place of the model's own, still in the file."""

    stored: StoredTensor
    """The matrix in the file, [rows, columns]."""

    def part(self, rows: range) -> Tensor:
        """Returns some rows, float32. Raises UnfitAdapter for numbers that aren't finite."""
        return finite_part(self.stored, rows, range(self.stored.shape[1]))


Fitted = Mapping[str, FittedModule | FittedMatrix]
"""What an adapter has for our modules, by name."""


def finite_part(stored: StoredTensor, rows: range, columns: range) -> Tensor:
    """Returns a part of a matrix, float32. Raises UnfitAdapter for numbers that aren't finite, or
    wouldn't be in bfloat16, which steps may compute with."""
    read = torch.empty(len(rows), len(columns), dtype=torch.float32)
    stored.read_part_into(read, (rows, columns))
    if not read.isfinite().all():
        raise UnfitAdapter(f"the adapter's tensor {stored.name} holds numbers that aren't finite")
    if read.numel() and read.abs().max() > _LARGEST:
        raise UnfitAdapter(f"the adapter's tensor {stored.name} holds numbers that are too large")
    return read


def fitted(
    adapter: Adapter,
    model: AdaptableModel,
    most_rank: int,
    weights: Callable[[], Weights] | None = None,
) -> dict[str, FittedModule | FittedMatrix]:
    """Returns what an adapter has for a model's modules by our names, as
    layers.0.self_attn.q_proj; a bias of a head as classifier.bias.

    `weights` opens the model's own, whose lengths DoRA needs. Raises UnfitAdapter if it was made
    for another model, or changes what can't be changed.
    """
    if adapter.rank > most_rank:
        raise UnfitAdapter(
            f"the adapter has rank {adapter.rank}; at most {most_rank} is allowed (max_lora_rank)"
        )
    if adapter.format == "gguf" and adapter.architecture not in model.gguf:
        raise UnfitAdapter(
            f"the adapter is for {adapter.architecture}, but the model is {model.name}"
        )
    found: dict[str, FittedModule | FittedMatrix] = {}
    for name, each in _parts(adapter, model, _Opened(weights)):
        if name in found:
            raise UnfitAdapter(f"the adapter changes {name} twice")
        found[name] = each
    return found


@dataclass
class _Opened:
    """The model's own weights, opened once, and only where they are needed."""

    open: Callable[[], Weights] | None
    _found: Weights | None = None

    def get(self) -> Weights:
        if self._found is None:
            if self.open is None:
                raise UnfitAdapter(
                    "the adapter uses DoRA, which needs the model's own weight files"
                )
            self._found = self.open()
        return self._found


def _parts(
    adapter: Adapter, model: AdaptableModel, own: _Opened
) -> Iterator[tuple[str, FittedModule | FittedMatrix]]:
    shapes, cuts = {**model.modules, **model.heads}, ExpertCuts(model)
    for each in adapter.modules:
        found = (
            _of_experts(each, cuts) if each.experts else _factors(each, adapter.format, model, own)
        )
        for name, module in found:
            _check(each, name, module, shapes, model)
            yield name, module
    for tensor in adapter.whole:
        stored = StoredTensor(tensor.name, tensor.shape, tensor.format, tensor.data)
        for ours in _named(stored, tensor.name, adapter.format, model):
            if not ours.startswith(model.unused):
                yield ours.removesuffix(".weight"), _whole(ours, stored, model)


def _of_experts(module: AdaptedModule, cuts: ExpertCuts) -> Iterator[tuple[str, FittedModule]]:
    for name, down, up in cuts.cut(module):
        yield name, FittedModule(down, up, module.scale)


def _factors(
    module: AdaptedModule, format: str, model: AdaptableModel, own: _Opened
) -> Iterator[tuple[str, FittedModule]]:
    """A fused module is several of ours, which share A."""
    theirs, down = f"{module.module}.weight", _stored(module.down)
    ups = _named(_stored(module.up), theirs, format, model)
    lengths: dict[str, StoredTensor] = {}
    if module.magnitude is not None:
        lengths = _named(_stored(module.magnitude), theirs, format, model)
    for each, up in ups.items():
        name = each.removesuffix(".weight")
        if name.startswith(model.unused):
            continue
        rows = None
        if each in lengths:
            shape = (up.shape[0], down.shape[1])
            matrix = EMBEDDING if name == HEAD and model.tied else name
            rows = RowLengths(name, shape, lengths[each], own.get(), matrix)
        yield name, FittedModule(down, up, module.scale, rows)


def _named(
    stored: StoredTensor, theirs: str, format: str, model: AdaptableModel
) -> dict[str, StoredTensor]:
    """A tensor by our names, of which there is at least one."""
    try:
        found = model.renamed(stored, theirs, format)
    except UnsupportedModel as error:
        raise UnfitAdapter(f"the adapter doesn't fit the model: {error}") from None
    # Some families' files get further tensors, which the adapter doesn't have.
    own = {name: each for name, each in found.items() if each.name == stored.name}
    if not own:
        raise UnfitAdapter(
            f"the adapter changes {theirs.removesuffix('.weight')}, which the model doesn't have"
        )
    return own


def _whole(ours: str, stored: StoredTensor, model: AdaptableModel) -> FittedMatrix:
    module, _, kind = ours.rpartition(".")
    if module in model.heads:
        outputs, inputs = model.heads[module]
        shape: tuple[int, ...] = (outputs,) if kind == "bias" else (outputs, inputs)
    elif module in model.whole and kind == "weight":
        shape = model.whole[module]
        if not model.takes_whole:
            raise UnfitAdapter(
                f"the adapter replaces the whole matrix {stored.name} (modules_to_save); that "
                "needs --lora-whole-matrices"
            )
    else:
        known = [*model.whole, *model.heads]
        raise UnfitAdapter(
            f"the adapter brings {stored.name} as a whole (modules_to_save); in this model it may "
            f"bring the weight of {' and '.join(known) or 'nothing'}"
        )
    if stored.shape != shape:
        more = stored.shape[0] - shape[0]
        also = f": an adapter with {more} tokens of its own is not served"
        raise UnfitAdapter(
            f"the adapter's {stored.name} has shape {stored.shape}; the model's has {shape}"
            f"{also if more > 0 and module in model.whole else ''}"
        )
    return FittedMatrix(replace(stored, shape=(*shape, 1)[:2]))


def _stored(factor: StoredFactor) -> StoredTensor:
    return StoredTensor(factor.name, factor.shape, factor.format, factor.data)


def _check(
    given: AdaptedModule,
    name: str,
    fitted: FittedModule,
    shapes: Mapping[str, tuple[int, int]],
    model: AdaptableModel,
) -> None:
    shape = shapes.get(name)
    if shape is None and name in model.experts:
        raise UnfitAdapter(
            f"the adapter changes {given.module}, part of a mixture of experts; that needs "
            "--lora-experts"
        )
    if shape is None:
        kinds = sorted({_in_layer(each) for each in shapes})
        raise UnfitAdapter(
            f"the adapter changes {given.module}; supported in this model: "
            f"{', '.join(kinds[:_MOST_NAMES])}"
        )
    outputs, inputs = shape
    if (fitted.up.shape[0], fitted.down.shape[1]) != shape:
        raise UnfitAdapter(
            f"the adapter changes {given.module} as a matrix of {fitted.up.shape[0]} by "
            f"{fitted.down.shape[1]}; the model's is {outputs} by {inputs}"
        )
    if name == EMBEDDING and fitted.lengths is not None:
        raise UnfitAdapter(f"the adapter changes {given.module} with DoRA, which is not supported")


def _in_layer(name: str) -> str:
    """A module's name without its layer and its expert's number."""
    return _EXPERT.sub(".experts.*.", _LAYER.sub("", name))
