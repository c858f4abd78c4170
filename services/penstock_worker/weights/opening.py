"""Opens a model's files as Weights, and those of its vision or audio tower."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isnan
from typing import TYPE_CHECKING

import torch

from penstock.errors import StartupError, UnsupportedModel
from penstock.families.finding import served_family
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock_worker.weights.factors import multiply_rows
from penstock_worker.weights.family_names import by_our_names
from penstock_worker.weights.files import safetensors_tensors
from penstock_worker.weights.filled import fill_values
from penstock_worker.weights.further_tokens import add_further_tokens
from penstock_worker.weights.gguf_files import gguf_name, gguf_tensors
from penstock_worker.weights.lacking_names import decoder_name, tower_name
from penstock_worker.weights.names import ROPE_FACTORS
from penstock_worker.weights.quantised import QuantisedWeights
from penstock_worker.weights.repacking import LAYOUTS
from penstock_worker.weights.stand_ins import add_zero_biases
from penstock_worker.weights.stored import CheckpointTensor, Place, StoredTensor, copied
from penstock_worker.weights.tower_files import Part, tower_tensors
from penstock_worker.weights.weights import Readable, Weights

if TYPE_CHECKING:
    from torch import Tensor

# Random weights in a model's shapes, for measuring speed without a checkpoint.


ZERO_BIASES = ("k_proj",)
"""Modules without biases in every layer of an audio tower, where others that share the product have
some."""
_ONES = (".weight", ".running_var")
"""Vectors with such names multiply, or divide."""


class DummyTensor:
    """A tensor of random values, generated on the target's device with a seed made from its name,
    so that it is the same in every run.

    Matrices are normal with variance 1 / inputs, so that they preserve the scale of activations;
    biases are small, and norms and variances are 1. Activations and logits thus stay in the range
    of a trained model's.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def read_part_into(self, out: Tensor, part: tuple[range, ...], place: Place = copied) -> None:
        """Fills `out`. The part and the place are ignored."""
        if self._name == ROPE_FACTORS or (out.dim() == 1 and self._name.endswith(_ONES)):
            out.fill_(1.0)
            return
        digest = hashlib.sha256(self._name.encode()).digest()
        generator = torch.Generator(out.device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        deviation = out.shape[-1] ** -0.5 if out.dim() == 2 else 0.01
        out.normal_(0.0, deviation, generator=generator)


class DummyWeights(Weights):
    """Has every tensor that is asked for, in whatever shape."""

    def __init__(self, dtype: torch.dtype | None, device: torch.device | None) -> None:
        super().__init__({}, dtype, device)

    def source(self, name: str, shape: tuple[int, ...]) -> Readable:
        return DummyTensor(name)

    def number(self, name: str) -> float:
        """A bound that keeps nothing back; 1 for anything else."""
        return -inf if name.endswith("_min") else inf if name.endswith("_max") else 1.0

    def take_table(self, name: str, shape: Sequence[int]) -> Tensor:
        """Rows count from 0: where a token's id chooses experts, all have the first ones."""
        return torch.arange(shape[1], device=self.device).repeat(shape[0], 1)


class TowerWeights(Weights):
    """Weights of a vision or audio tower. Raises UnsupportedModel for a tensor with a number that
    isn't finite: every item's encoding would fail, as if the item were to blame."""

    def source(self, name: str, shape: tuple[int, ...]) -> Readable:
        return FiniteTensor(self.stored(name, shape))

    def number(self, name: str) -> float:
        """Single numbers are bounds: infinite ones keep nothing back."""
        found = super().number(name)
        if isnan(found):
            raise _damaged(self.tensors[name].name)
        return found


@dataclass(frozen=True)
class FiniteTensor:
    """A tensor that is checked when it is read."""

    stored: StoredTensor

    def read_part_into(self, out: Tensor, part: tuple[range, ...], place: Place = copied) -> None:
        """Raises UnsupportedModel for numbers that aren't finite in the dtype of `out`."""
        self.stored.read_part_into(out, part, place)
        if bool(out.isfinite().logical_not_().any().cpu()):
            raise _damaged(self.stored.name)


def _damaged(name: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"tensor {name} holds numbers that aren't finite: its file is damaged, or they are too "
        "large for the dtype"
    )


def open_weights(
    files: WeightFiles,
    config: ModelConfig,
    dtype: torch.dtype | None = None,
    *,
    device: torch.device | None = None,
    load_format: str = "auto",
    keep_quantised: bool = False,
) -> Weights:
    """Maps the files and checks their headers. No tensor data is read yet.

    `dtype`: of tensors that are asked for without one; None: float32. `device`: None is the CPU.
    `load_format` is "auto", or "dummy", which needs no files. With `keep_quantised`, matrices of
    quantised types are not unpacked.
    """
    if load_format == "dummy":
        return DummyWeights(dtype, device)
    if load_format != "auto":
        raise StartupError(f"load_format is {load_format!r}; allowed are auto, dummy")
    if files.format == "gguf":
        tensors = gguf_tensors(files.files, config)
        multiply_rows(tensors, config)
        fill_values(tensors, config)
        quantised = any(
            tensor.format in LAYOUTS or isinstance(tensor, CheckpointTensor)
            for tensor in tensors.values()
        )
        kind = QuantisedWeights if keep_quantised and quantised else Weights
        return kind(tensors, dtype, device).calling(partial(gguf_name, config=config))
    found = safetensors_tensors(files.files, quantised=files.quantised)
    names = served_family(config.architecture).hub_names
    tensors = by_our_names(found, names, config)
    multiply_rows(tensors, config)
    fill_values(tensors, config)
    add_further_tokens(tensors, config)
    _take_head_for_embedding(tensors, config)
    kept = keep_quantised and files.quantised is not None
    weights = (QuantisedWeights if kept else Weights)(tensors, dtype, device)
    return weights.calling(partial(decoder_name, tensors=tensors, names=names))


def _take_head_for_embedding(tensors: dict[str, StoredTensor], config: ModelConfig) -> None:
    """Makes a head the embedding, too, where only that was saved: of two tensors with the same
    memory, safetensors' own `save_model` keeps one. Modifies `tensors`."""
    head = tensors.get("lm_head.weight")
    if config.tie_word_embeddings and head is not None:
        tensors.setdefault("embed_tokens.weight", head)


def open_tower_weights(
    files: WeightFiles,
    dtype: torch.dtype,
    part: Part,
    *,
    device: torch.device | None = None,
    load_format: str = "auto",
) -> Weights:
    """Maps a checkpoint's tensors of tower and projector. No tensor data is read yet. Raises
    UnsupportedModel for files that are neither safetensors nor have such a file next to them."""
    if load_format == "dummy":
        return DummyWeights(dtype, device)
    found, names = tower_tensors(files, part)
    if part == "audio":
        add_zero_biases(found, ZERO_BIASES)
    weights = TowerWeights(found, dtype, device)
    return weights.calling(partial(tower_name, tensors=found, names=names))
