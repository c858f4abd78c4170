"""Writes a model's tensors in the types of a mix, one matrix at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock.formats.gguf_writing import GGUFWriter, TensorEntry, encoded_value
from penstock_conversion.quantize.encoders import FLOATS, encode
from penstock_conversion.quantize.mixes import Mix, is_quantised, tensor_type
from penstock_conversion.quantize.source import SourceModel, SourceTensor

CHUNK = 1 << 18
"""Numbers that are encoded at a time: their temporary values stay in a core's cache."""
COPIED = 64 << 20
"""Bytes that are copied at a time."""
QUANTISATION_VERSION = 2
"""general.quantization_version: of the layout of ggml's blocks."""

Importances = Mapping[str, Tensor]
"""The mean square of each input, [columns] float32, by a tensor's name in GGUF files."""
OnTensor = Callable[[TensorEntry], None]
"""Called when a tensor is written."""


def entries(source: SourceModel, mix: Mix, *, weighted: bool) -> list[TensorEntry]:
    """The tensors of the file with their types, in its order."""
    facts = source.facts(weighted=weighted)

    def kind_of(tensor: SourceTensor) -> str:
        if is_quantised(tensor.name, tensor.shape):
            return tensor_type(tensor.name, tensor.shape, mix, facts)
        if len(tensor.shape) == 1 and tensor.stored.format in FLOATS:
            return "F32"  # norms and biases, as llama.cpp has them
        return tensor.stored.format

    return [TensorEntry(each.name, each.shape, kind_of(each)) for each in source.tensors]


def write(
    source: SourceModel,
    mix: Mix,
    path: Path,
    *,
    importances: Importances,
    threads: int,
    written: OnTensor,
) -> None:
    """Writes the file under a temporary name in the same folder, and renames it once it is whole.
    Raises StartupError where there is no room, UnsupportedModel for numbers that a type can't
    hold."""
    said = {
        "general.file_type": encoded_value(mix.file_type, "uint32"),
        "general.quantization_version": encoded_value(QUANTISATION_VERSION, "uint32"),
    }
    planned = entries(source, mix, weighted=bool(importances))
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        with (
            ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1)) as pool,
            GGUFWriter(unfinished, source.metadata | said, planned) as file,
        ):
            for tensor in source.tensors:
                _write_tensor(file, tensor, importances.get(tensor.name), pool, written)
        os.replace(unfinished, path)
    except OSError as error:
        raise StartupError(f"{path} can't be written: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _write_tensor(
    file: GGUFWriter,
    tensor: SourceTensor,
    importance: Tensor | None,
    pool: ThreadPoolExecutor,
    written: OnTensor,
) -> None:
    entry = file.begin()
    if entry.type == tensor.stored.format and tensor.is_as_written:
        content = tensor.stored.data
        for at in range(0, len(content), COPIED):
            file.write(content[at : at + COPIED])
        tensor.stored.release()
    else:
        made = partial(_encoded, tensor, entry.type, importance)
        for part in pool.map(made, _chunks(tensor)):
            file.write(part.numpy())
    written(entry)


def _encoded(tensor: SourceTensor, kind: str, importance: Tensor | None, rows: range) -> Tensor:
    with torch.inference_mode():
        return encode(tensor.read(rows), kind, importance, tensor.name)


def _chunks(tensor: SourceTensor) -> Iterator[range]:
    step = max(1, CHUNK // tensor.shape[-1])
    for start in range(0, tensor.rows, step):
        yield range(start, min(start + step, tensor.rows))
