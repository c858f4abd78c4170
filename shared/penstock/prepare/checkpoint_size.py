"""What the files of a checkpoint hold, against what its config and its index claim.

Whatever is loaded later takes memory by the config's sizes, so they are compared with the weights'
before that. The exact shapes are compared when tensors are read; here it is what no model can do
without, in any family: an embedding.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.errors import UnsupportedModel
from penstock.formats.safetensors_file import SafetensorsFile, SafetensorsTensor, same_content
from penstock.formats.weight_files import index_of, read_index
from penstock.process import logs

log = logs.get(__name__)

MOST_SHOWN = 8
"""Tensors that a line of the log lists."""
MAX_TENSORS = 1 << 20
"""Tensors in all shards. The largest open models have 200,000."""
PACKED = ("I32", "U32", "U8")
"""Types of matrices that hold several values in each number."""
SMALL = 1 << 30
"""Values that are not worth refusing here."""


class HeldTensors(msgspec.Struct, frozen=True):
    """count: tensors of all files.  size: bytes of their data.  first_types: bytes of the first
    file, by type.  numbers: values in all tensors; 0 where matrices of integers hold several in
    one, as many as their format says."""

    count: int
    size: int
    first_types: Counter[str]
    numbers: int = 0


class Sizes(Protocol):
    """Sizes that a ModelConfig or an EncoderConfig states."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...


def check_shards(folder: Path, shards: Sequence[Path]) -> HeldTensors:
    """Reads the headers of all shards. Raises UnsupportedModel for a broken one, and for a tensor
    that is in two of them with different values."""
    found: dict[str, SafetensorsTensor] = {}
    places: dict[str, set[str]] = {}
    size, first_types = 0, Counter[str]()
    packed = False
    for shard in shards:
        for name, tensor in SafetensorsFile(shard).tensors.items():
            known = found.setdefault(name, tensor)
            if known is not tensor and not same_content(known, tensor):
                raise UnsupportedModel(
                    f"the tensor {name[:200]} is in two files of {folder}, "
                    f"{', '.join(places[name])} and {shard.name}, with different values"
                )
            places.setdefault(name, set()).add(shard.name)
            size += tensor.data.nbytes
            packed = packed or (tensor.dtype in PACKED and len(tensor.shape) == 2)
            if shard == shards[0]:
                first_types[tensor.dtype] += tensor.data.nbytes
        if len(found) > MAX_TENSORS:
            raise UnsupportedModel(f"{folder} holds more than {MAX_TENSORS} tensors")
    index = index_of(folder)
    if index is not None:
        _tell_differences(index, places)
    numbers = 0 if packed else sum(math.prod(tensor.shape) for tensor in found.values())
    return HeldTensors(len(found), size, first_types, numbers)


def _tell_differences(index: Path, places: dict[str, set[str]]) -> None:
    """Logs differences between the index and the files. The files count: loading a tensor that is
    missing raises an error."""
    wrong = [name for name, shard in read_index(index).items() if shard not in places.get(name, ())]
    if wrong:
        shown = ", ".join(name[:80] for name in wrong[:MOST_SHOWN])
        log.info("the index differs from the shards", index=str(index), tensors=shown)


# An output head in a checkpoint whose config.json says that embeddings are tied.
_EMBEDDING = re.compile(r"(?:^|\.)embed_tokens\.weight$")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|proj_out)\.weight$")


def has_own_head(shards: Sequence[Path]) -> bool:
    """Whether the files hold a head that differs from the embedding. transformers uses it then,
    whatever config.json says about tied weights. Reads both up to the first difference."""
    tensors = [each for shard in shards for each in SafetensorsFile(shard).tensors.values()]
    heads = [each for each in tensors if _HEAD.search(each.name)]
    embeddings = [each for each in tensors if _EMBEDDING.search(each.name)]
    if len(heads) != 1 or len(embeddings) != 1:
        return False
    return not same_content(heads[0], embeddings[0])


def refuse_more_than_is_held(config: Sizes, held: HeldTensors, where: str) -> None:
    """Raises UnsupportedModel for a large embedding that the weights can't be the values of: no
    format has more than eight in a byte."""
    claimed = config.vocab_size * config.hidden_size
    if claimed > max(8 * held.size, SMALL):
        raise UnsupportedModel(
            f"{where}: an embedding of {config.vocab_size} x {config.hidden_size} values is "
            f"claimed, and all weights together have {held.size} bytes"
        )
