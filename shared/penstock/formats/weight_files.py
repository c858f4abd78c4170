"""Which weight files a hub folder holds. Pickled weights are refused, never opened."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.errors import ModelNotFound, UnsupportedModel
from penstock.formats.small_file import read_small

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
OWN_FORMAT = re.compile(r"consolidated(\.|-\d)")
"""How the names of files begin that Mistral publishes in its own format, in addition to the
hub's."""
LONGEST_NAME = 255
"""Bytes of a file's name, on most file systems: a longer one can't even be looked for."""
MAX_INDEX_BYTES = 64 << 20
_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def refuse_pickle(path: Path) -> None:
    """Raise UnsupportedModel if the name is that of a pickled checkpoint."""
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise UnsupportedModel(
            f"{path}: pickled weights ({', '.join(PICKLE_SUFFIXES)}) are not loaded, since "
            "unpickling runs code from the file; convert them to .safetensors"
        )


def is_file_name(name: str) -> bool:
    """Whether a file of a folder can be called so."""
    return (
        Path(name).name == name
        and name != ".."
        and len(name.encode("utf-8", "replace")) <= LONGEST_NAME
        and "\0" not in name
    )


def find_safetensors(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a hub folder, shards in the order of their names.

    A single file that the index of the shards doesn't name is the model, as in transformers. Shards
    without an index are, if their names say that none is missing.

    Raises UnsupportedModel if there are only pickled weights or the shard index is broken,
    ModelNotFound if there are no weights at all, or a shard is missing.
    """
    index = index_of(folder)
    if index is not None:
        return _shards(index)
    if (folder / SINGLE_FILE).is_file():
        return (folder / SINGLE_FILE,)
    found = sorted(folder.glob("*.safetensors"))
    others = [path for path in found if not OWN_FORMAT.match(path.name)]
    if _are_whole(others):
        return tuple(others)
    if others:
        one = len(others) == 1
        held = f"{others[0].name} alone" if one else f"{len(others)} .safetensors files"
        raise UnsupportedModel(f"{folder} holds {held} but no {INDEX_FILE}")
    if found:
        raise UnsupportedModel(
            f"{found[0]} has Mistral's own names of tensors, which are not served; the hub's "
            f"format has a {SINGLE_FILE} or {INDEX_FILE}"
        )
    for path in sorted(folder.iterdir()):
        refuse_pickle(path)
    raise ModelNotFound(f"{folder} holds no weights: {SINGLE_FILE} or {INDEX_FILE} expected")


def index_of(folder: Path) -> Path | None:
    """The shard index that says what the folder's weights are; None if none does."""
    index, single = folder / INDEX_FILE, folder / SINGLE_FILE
    if not index.is_file():
        return None
    if single.is_file() and SINGLE_FILE not in read_index(index).values():
        return None
    return index


def _are_whole(paths: Sequence[Path]) -> bool:
    """Whether they are one file, or all shards of one model, by their names."""
    found = [_NUMBERED.fullmatch(path.name) for path in paths]
    if found == [None]:
        return True
    parts = [(each[1], int(each[2]), int(each[3])) for each in found if each is not None]
    name, _, count = parts[0] if parts else ("", 0, 0)
    return 0 < count == len(paths) and parts == [(name, at, count) for at in range(1, count + 1)]


def read_index(path: Path) -> dict[str, str]:
    """The shard of each tensor, by its name. Raises UnsupportedModel if it can't be read."""
    try:
        index = msgspec.json.decode(read_small(path, MAX_INDEX_BYTES), type=_Index)
    except (msgspec.DecodeError, OSError, UnicodeDecodeError, RecursionError) as error:
        raise UnsupportedModel(f"{path} is not a readable shard index: {error}") from None
    return index.weight_map


def _shards(path: Path) -> tuple[Path, ...]:
    shards = sorted(set(read_index(path).values()))
    if not shards:
        raise UnsupportedModel(f"{path} names no shard")
    for shard in shards:
        _check_shard(path, shard)
    return tuple(path.parent / shard for shard in shards)


def _check_shard(index: Path, shard: str) -> None:
    if not is_file_name(shard) or not shard.endswith(".safetensors"):
        raise UnsupportedModel(
            f"{index} names the shard {shard[:300]!r}; only .safetensors files beside it are "
            "allowed"
        )
    if not (index.parent / shard).is_file():
        raise ModelNotFound(f"{index} names the shard {shard}, which is not in the folder")
