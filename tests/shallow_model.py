"""The default model with its first layers alone: its tokenizer, its chat template, its vocabulary,
and a third of its weights. It writes nonsense, so it is for tests to which it doesn't matter what
is said."""

from __future__ import annotations

import struct
from pathlib import Path

from gguf.constants import GGUF_DEFAULT_ALIGNMENT as ALIGNMENT

from penstock.prepare import load_manifest, prepare
from testing.processes import MODEL
from testing.quick_gguf import QuickReader
from tests.made_once import made_once

LAYERS = 4
COUNT = slice(8, 16)
"""Where a GGUF file says how many tensors it has."""
DEPTH = b"llama.block_count" + struct.pack("<I", 4)
"""A key, and the type of its value, which is a uint32."""


def shallow_model() -> str:
    """Its path. The file has the default model's name."""
    return str(made_once("shallow", _make) / f"{MODEL}.gguf")


def _make(folder: Path) -> None:
    """Leaves out what the header says of further layers; their weights stay where they are."""
    (source,) = load_manifest(prepare(MODEL)).weights.files
    read = QuickReader(source)
    header = bytearray(read.data[: read.data_offset])
    descriptions = {  # By their tensors' names; each goes from its field's offset to the next one.
        tensor.name: tensor.field.offset for tensor in read.tensors
    }
    ends = [*list(descriptions.values())[1:], _end(header, read.tensors[-1].field.offset)]
    kept = [
        header[begin:end]
        for (name, begin), end in zip(descriptions.items(), ends, strict=True)
        if not name.startswith("blk.") or int(name.split(".")[1]) < LAYERS
    ]
    made = header[: min(descriptions.values())]
    made[COUNT] = struct.pack("<Q", len(kept))
    at = made.index(DEPTH) + len(DEPTH)
    made[at : at + 4] = struct.pack("<I", LAYERS)
    made += b"".join(kept)
    made += bytes(-len(made) % ALIGNMENT)
    folder.mkdir()
    with (folder / f"{MODEL}.gguf").open("wb") as file:
        file.writelines((made, read.data[read.data_offset :]))


def _end(header: bytearray, begin: int) -> int:
    """Where a tensor's description ends: length of its name, name, number of dimensions,
    dimensions, type, offset."""
    length = int(struct.unpack_from("<Q", header, begin)[0])
    dimensions = int(struct.unpack_from("<I", header, begin + 8 + length)[0])
    return begin + 8 + length + 4 + 8 * dimensions + 4 + 8
