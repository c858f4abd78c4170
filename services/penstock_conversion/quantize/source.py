"""The input of quantisation: a model's tensors by the names of GGUF files, and the metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock.formats.gguf_names import part_paths
from penstock.formats.gguf_split import open_gguf
from penstock.formats.gguf_writing import metadata_bytes
from penstock_conversion.quantize.mixes import HEAD, MixFacts
from penstock_worker.weights.gguf_files import NVFP4
from penstock_worker.weights.stored import CheckpointTensor, StoredTensor

_OF_PARTS = ("split.no", "split.count", "split.tensors.count")
"""Keys of files that were split; what is written is one file."""
_ALIGNMENT = "general.alignment"
"""Key of the source's alignment; what is written has the usual one."""


@dataclass(frozen=True)
class SourceTensor:
    """A tensor that will be written. stored: its data, and its shape in the file that is made."""

    name: str
    stored: StoredTensor
    added: float = 0.0
    """What is added to each number."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def rows(self) -> int:
        """Rows of all its matrices together."""
        return math.prod(self.shape[:-1])

    @property
    def is_as_written(self) -> bool:
        """Whether its bytes are what a file with its own type has."""
        stored = self.stored
        plain = stored.rearrange is None and stored.made is None and not stored.factors
        return plain and not self.added and not isinstance(stored, CheckpointTensor)

    def read(self, rows: range) -> Tensor:
        """Decodes some rows, [rows, columns] float32."""
        columns = self.shape[-1]
        found = torch.empty(len(rows), columns)
        if len(self.shape) == 1:
            self.stored.read_part_into(found[0], (range(columns),))
        else:
            flat = replace(self.stored, shape=(self.rows, columns))
            flat.read_part_into(found, (rows, range(columns)))
        return found + self.added if self.added else found


@dataclass(frozen=True)
class SourceModel:
    """A model. metadata: as `metadata_bytes` has it."""

    metadata: dict[str, bytes]
    tensors: tuple[SourceTensor, ...]
    layers: int
    shares: int
    experts: int

    def facts(self, *, weighted: bool) -> MixFacts:
        """What the types of the tensors depend on."""
        tied = not any(each.name == HEAD for each in self.tensors)
        return MixFacts(self.layers, self.shares, self.experts, tied, weighted)


def gguf_source(path: Path) -> SourceModel:
    """The model in a GGUF file, or in all parts of a split one. Raises UnsupportedModel and
    ModelNotFound."""
    file = open_gguf(path)
    metadata = metadata_bytes(part_paths(path)[0])
    for key in (*_OF_PARTS, _ALIGNMENT):
        metadata.pop(key, None)
    tensors = tuple(
        SourceTensor(each.name, StoredTensor(each.name, each.shape, each.type, each.data))
        for each in file.tensors.values()
    )
    with_factors = next((each.name for each in file.tensors.values() if each.type == NVFP4), None)
    if with_factors is not None:
        raise UnsupportedModel(
            f"{file.path}: {with_factors} is {NVFP4}, whose factors are tensors of their own: start"
            " from the unquantised release"
        )
    keys = _of_architecture(file)
    heads, kv_heads = (
        _first(keys, f"attention.{name}") for name in ("head_count", "head_count_kv")
    )
    return SourceModel(
        metadata,
        tensors,
        layers=_first(keys, "block_count"),
        shares=heads // kv_heads if kv_heads else 1,
        experts=_first(keys, "expert_count"),
    )


def _of_architecture(file: GGUFFile) -> Mapping[str, Any]:
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise UnsupportedModel(f"{file.path}: general.architecture is missing")
    begin = f"{name}."
    found = file.metadata.items()
    return {key.removeprefix(begin): value for key, value in found if key.startswith(begin)}


def _first(keys: Mapping[str, Any], name: str) -> int:
    """A number, or the largest of those that each layer has; 0 if there is none."""
    value = keys.get(name, 0)
    return (
        max((each for each in value if isinstance(each, int)), default=0)
        if isinstance(value, list)
        else int(value)
    )
