"""What the files of a checkpoint hold, against what its config and its index claim.

Whatever is loaded later takes memory by the config's sizes, so they are compared with the weights'
before that. The exact shapes are compared when tensors are read; here it is what no model can do
without, in any family: an embedding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.errors import UnsupportedModel
from penstock.formats.safetensors_file import SafetensorsFile
from penstock.formats.weight_files import INDEX_FILE, read_index

MAX_TENSORS = 1 << 20
"""In all shards. The largest open models have 200,000."""
SMALL = 1 << 30
"""Values that are not worth refusing here."""


class HeldTensors(msgspec.Struct, frozen=True):
    """count: tensors of all files.  size: bytes of their data.  first_types: bytes of the first
    file, by type."""

    count: int
    size: int
    first_types: Counter[str]


class Sizes(Protocol):
    """Sizes that a ModelConfig or an EncoderConfig states."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...


def check_shards(folder: Path, shards: Sequence[Path]) -> HeldTensors:
    """Reads the headers of all shards. Raises UnsupportedModel for a broken one, for a tensor that
    is in two of them, or that isn't where the index says."""
    places: dict[str, str] = {}
    size, first_types = 0, Counter[str]()
    for shard in shards:
        for name, tensor in SafetensorsFile(shard).tensors.items():
            if name in places:
                raise UnsupportedModel(
                    f"the tensor {name[:200]} is in two files of {folder}, {places[name]} and "
                    f"{shard.name}"
                )
            places[name] = shard.name
            size += tensor.data.nbytes
            if shard == shards[0]:
                first_types[tensor.dtype] += tensor.data.nbytes
        if len(places) > MAX_TENSORS:
            raise UnsupportedModel(f"{folder} holds more than {MAX_TENSORS} tensors")
    _check_index(folder / INDEX_FILE, places)
    return HeldTensors(len(places), size, first_types)


def _check_index(index: Path, places: dict[str, str]) -> None:
    if not index.is_file():
        return
    for name, shard in read_index(index).items():
        if places.get(name) != shard:
            where = f"which holds it in {places[name]}" if name in places else "which lacks it"
            raise UnsupportedModel(
                f"{index} says that the tensor {name[:200]} is in {shard} of a checkpoint {where}"
            )


def refuse_more_than_is_held(config: Sizes, held: HeldTensors, where: str) -> None:
    """Raises UnsupportedModel for a large embedding that the weights can't be the values of: no
    format has more than eight in a byte."""
    claimed = config.vocab_size * config.hidden_size
    if claimed > max(8 * held.size, SMALL):
        raise UnsupportedModel(
            f"{where}: an embedding of {config.vocab_size} x {config.hidden_size} values is "
            f"claimed, and all weights together have {held.size} bytes"
        )
