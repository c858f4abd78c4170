"""Weights that the caller has in memory, on their way to the workers through the machine's shared
memory: a checkpoint that only this user may read, and that ends with the next one."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from penstock.errors import InvalidRequest

SHARED_MEMORY = Path("/dev/shm")
SHARD_BYTES = 2**30
"""Roughly, of a file: no more is held twice."""
WEIGHTS = (
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".msgpack",
    ".h5",
)
"""Names of files that hold a checkpoint's weights end so, or say where they lie."""


class GivenWeights:
    """model: the served model, by the name that was requested.  cache_dir: of its prepared
    folder."""

    def __init__(self, model: str, cache_dir: str | None) -> None:
        self._model = model
        self._cache_dir = cache_dir
        self._written: list[TemporaryDirectory[str]] = []
        """The last one is the newest."""

    def write(self, tensors: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Path:
        """Writes a folder in the hub's format with these tensors instead of the model's own.

        tensors: torch tensors or NumPy arrays by the checkpoint's names, on any device.  Returns
        the folder.  Raises InvalidRequest for a model whose checkpoint isn't in that format and for
        anything that is no tensor; OSError if there is no room.
        """
        like = self._checkpoint()
        place = str(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else None
        made = TemporaryDirectory(prefix="penstock-weights-", dir=place)
        try:
            folder = Path(made.name) / like.name
            folder.mkdir()
            for file in like.iterdir():
                if file.is_file() and not file.name.endswith(WEIGHTS):
                    shutil.copyfile(file, folder / file.name)
            _write_shards(folder, tensors)
        except BaseException:
            made.cleanup()
            raise
        self._written.append(made)
        return folder

    def cache_of(self, folder: Path) -> str:
        """The folder to prepare the model in, which is removed together with the weights."""
        return str(folder.parent / "prepared")

    def taken(self, *, newest: bool, promised: bool) -> None:
        """Records that other weights are served now. newest: those that were written last.
        promised: a sleeping model tries them when it wakes, and may go back to the old ones."""
        while len(self._written) > int(newest) + int(promised):
            self._written.pop(0).cleanup()

    def refused(self) -> None:
        """Records that the newest weights will never be served."""
        self._written.pop().cleanup()

    def close(self) -> None:
        """Records that none of them are served any more."""
        self.taken(newest=False, promised=False)

    def _checkpoint(self) -> Path:
        from penstock.prepare import load_manifest, prepare

        manifest = load_manifest(prepare(self._model, cache_dir=self._cache_dir))
        if manifest.weights.format != "safetensors" or manifest.weights.quantised is not None:
            kind = "quantised" if manifest.weights.quantised is not None else "in GGUF"
            raise InvalidRequest(
                f"{manifest.name} is {kind}; tensors can be given to a model whose checkpoint is in"
                " the hub's format, and not quantised",
                param="tensors",
            )
        return Path(manifest.weights.files[0]).parent


def _write_shards(folder: Path, tensors: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
    places: dict[str, str] = {}
    for number, shard in enumerate(_shards(tensors)):
        name = f"model-{number:05}.safetensors"
        _save(shard, folder / name)
        places |= dict.fromkeys(shard, name)
    if not places:
        raise InvalidRequest("tensors is empty", param="tensors")
    index = msgspec.json.encode({"metadata": {}, "weight_map": places})
    (folder / "model.safetensors.index.json").write_bytes(index)


def _shards(
    tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Copies in the processor's memory."""
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    shard: dict[str, Any] = {}
    size = 0
    for name, tensor in pairs:
        if not isinstance(name, str) or not hasattr(tensor, "nbytes"):
            raise InvalidRequest(
                f"tensors has {str(name)[:60]!r}: {type(tensor).__name__}; allowed: names with"
                " torch's tensors or NumPy's arrays",
                param="tensors",
            )
        if shard and size + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = _copied(tensor)
        size += tensor.nbytes
    if shard:
        yield shard


def _copied(tensor: Any) -> Any:
    if hasattr(tensor, "detach"):
        return tensor.detach().to("cpu", copy=True).contiguous()
    return tensor.copy(order="C")


def _save(shard: dict[str, Any], path: Path) -> None:
    kinds = {hasattr(tensor, "detach") for tensor in shard.values()}
    if len(kinds) > 1:
        raise InvalidRequest(
            "tensors has both torch's and NumPy's; allowed: one of the two", param="tensors"
        )
    if kinds == {True}:
        from safetensors import torch as library
    else:
        from safetensors import numpy as library  # type: ignore[no-redef]
    library.save_file(shard, str(path))
