"""Reads the tensors of llama.cpp's mmproj files."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock_worker.weights.stored import StoredTensor


def read_tensors(
    file: GGUFFile, ours: Callable[[str], str | None], flat: frozenset[str] = frozenset()
) -> dict[str, StoredTensor]:
    """Returns a file's tensors by our names. ours: the name for one of the file's; None for one
    that isn't needed.  flat: our names of tensors that may have dimensions of one element around
    their own.  Raises UnsupportedModel for two tensors of one meaning."""
    found: dict[str, StoredTensor] = {}
    for tensor in file.tensors.values():
        name = ours(tensor.name)
        if name is None:
            continue
        if name in found:
            raise UnsupportedModel(f"{file.path}: two tensors have the meaning of {tensor.name}")
        shape = tensor.shape
        if name in flat:
            shape = tuple(size for size in shape if size != 1) or (1,)
        found[name] = StoredTensor(tensor.name, shape, tensor.type, tensor.data)
    return found
