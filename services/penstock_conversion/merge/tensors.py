"""The tensors of a base model with what an adapter adds, by the names of the base's own files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.formats.safetensors_file import SafetensorsFile, SafetensorsTensor
from penstock.formats.safetensors_writing import Entry
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import PreparedModel
from penstock_worker.adapters.adaptable import EMBEDDING, HEAD
from penstock_worker.adapters.fitting import Fitted, FittedMatrix, FittedModule
from penstock_worker.weights.names import base_names, unwrapped
from penstock_worker.weights.stored import StoredTensor

CHUNK = 1 << 20
"""Numbers that are merged at a time."""
COPIED = 64 << 20
"""Bytes that are copied at a time."""
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Merged:
    """The tensors of a model's files, with an adapter in them."""

    files: tuple[str, ...]
    own: Mapping[str, StoredTensor]
    """The model's tensors by our names."""
    fitted: Fitted
    untied: bool
    """Whether the output head, which was tied to the embedding, is written as a matrix of its
    own."""

    def entries(self) -> list[Entry]:
        """What is written, in its order."""
        found = [Entry(tensor.name, tensor.dtype, tensor.shape) for tensor in self._tensors()]
        if self.untied:
            embedding = self._embedding()
            found.append(Entry(f"{HEAD}.weight", embedding.dtype, embedding.shape))
        return found

    def pieces(self) -> Iterator[tuple[Entry, Iterator[np.ndarray]]]:
        """The entries with their bytes."""
        parts = self._parts()
        for tensor in self._tensors():
            yield Entry(tensor.name, tensor.dtype, tensor.shape), self._content(tensor, parts)
        if self.untied:
            embedding = self._embedding()
            entry = Entry(f"{HEAD}.weight", embedding.dtype, embedding.shape)
            stored = self.own[f"{EMBEDDING}.weight"]
            yield entry, self._merged(embedding, [(HEAD, stored)])

    def _tensors(self) -> Iterator[SafetensorsTensor]:
        """Tensors of the files; of an untied model without a copy of the head that was tied."""
        seen: set[str] = set()
        for path in self.files:
            tensors = SafetensorsFile(path).tensors
            names = base_names(list(tensors))
            for name, tensor in tensors.items():
                if name not in names or name in seen:
                    continue
                seen.add(name)
                if not (self.untied and unwrapped(name) == f"{HEAD}.weight"):
                    yield tensor

    def _embedding(self) -> SafetensorsTensor:
        name = self.own[f"{EMBEDDING}.weight"].name
        return next(each for each in self._tensors() if unwrapped(each.name) == name)

    def _parts(self) -> dict[str, list[tuple[str, StoredTensor]]]:
        """Our modules that each tensor of the files consists of, in the order of its rows."""
        found: dict[str, list[tuple[str, StoredTensor]]] = {}
        for name, stored in self.own.items():
            if name.endswith(".weight"):
                found.setdefault(stored.name, []).append((name.removesuffix(".weight"), stored))
        return found

    def _content(
        self, tensor: SafetensorsTensor, parts: Mapping[str, list[tuple[str, StoredTensor]]]
    ) -> Iterator[np.ndarray]:
        pieces = parts.get(unwrapped(tensor.name), [])
        if not any(name in self.fitted for name, _ in pieces):
            return _copied(tensor.data)
        rows = sum(stored.shape[0] for _, stored in pieces)
        if len(tensor.shape) != 2 or rows != tensor.shape[0]:
            raise UnsupportedModel(
                f"the adapter changes {pieces[0][0]}, which the base's files have in one tensor"
                f" with others ({tensor.name}): it can't be merged; serve it with --enable-lora"
            )
        return self._merged(tensor, pieces)

    def _merged(
        self, tensor: SafetensorsTensor, pieces: list[tuple[str, StoredTensor]]
    ) -> Iterator[np.ndarray]:
        dtype = DTYPES.get(tensor.dtype)
        if dtype is None:
            raise UnsupportedModel(
                f"{tensor.name} is {tensor.dtype}; the adapter changes it, for which"
                f" {', '.join(DTYPES)} are allowed"
            )
        for name, stored in pieces:
            if stored.made is not None:
                raise UnsupportedModel(
                    f"the rows of {tensor.name} lie between others': it can't be merged"
                )
            whole = _changes(name, self.fitted.get(name), stored)
            step = max(1, CHUNK // stored.shape[1])
            for start in range(0, stored.shape[0], step):
                rows = range(start, min(start + step, stored.shape[0]))
                found = whole.rows(rows).to(dtype)
                if not bool(found.isfinite().all()):
                    raise UnsupportedModel(f"{tensor.name} with the adapter has infinite numbers")
                yield found.contiguous().view(torch.uint8).reshape(-1).numpy()


def _copied(data: np.ndarray) -> Iterator[np.ndarray]:
    for at in range(0, len(data), COPIED):
        yield data[at : at + COPIED]


@dataclass(frozen=True)
class _Changed:
    """A module's matrix with its change. All is in the order of the file's rows."""

    stored: StoredTensor
    order: np.ndarray
    """[rows]: our row for each of the file's."""
    up: Tensor | None = None
    down: Tensor | None = None
    gains: Tensor | None = None
    instead: FittedMatrix | None = None

    def rows(self, rows: range) -> Tensor:
        """float32."""
        own = torch.from_numpy(self.order[rows.start : rows.stop])
        if self.instead is not None:
            first = int(own.min())
            return self.instead.part(range(first, int(own.max()) + 1))[own - first]
        plain = self.stored if self.stored.rearrange is None else _as_in_file(self.stored)
        found = torch.empty(len(rows), self.stored.shape[1])
        plain.read_part_into(found, (rows, range(self.stored.shape[1])))
        if self.gains is not None:
            found *= self.gains[own][:, None]
        if self.up is not None and self.down is not None:
            found += (self.up[own].double() @ self.down.double()).float()
        return found


def _as_in_file(stored: StoredTensor) -> StoredTensor:
    return stored.own_rows(range(stored.shape[0]))[0]


def _changes(
    name: str, fitted: FittedModule | FittedMatrix | None, stored: StoredTensor
) -> _Changed:
    outputs, inputs = stored.shape
    order = np.empty(outputs, np.int64)
    order[stored.sources()] = np.arange(outputs)
    if fitted is None:
        return _Changed(stored, order)
    if isinstance(fitted, FittedMatrix):
        return _Changed(stored, order, instead=fitted)
    if name == EMBEDDING:  # It is the product with a token's unit vector.
        found = fitted.parts(range(inputs), range(outputs))
        return _Changed(stored, order, up=found.down.t(), down=found.up.t())
    found = fitted.parts(range(outputs), range(inputs))
    return _Changed(stored, order, up=found.up, down=found.down, gains=found.gains)


def untied(prepared: PreparedModel, config: ModelConfig, fitted: Fitted) -> bool:
    """Whether embedding and head, which were one matrix, become two: an adapter changes either.
    Raises UnsupportedModel for a model that takes media, whose head would need another name."""
    if not config.tie_word_embeddings or not (EMBEDDING in fitted or HEAD in fitted):
        return False
    if prepared.media is not None:
        raise UnsupportedModel(
            f"the adapter changes the embedding or the output head of {prepared.name}, which are"
            " one matrix: in a model that takes media, that can't be merged"
        )
    return True
