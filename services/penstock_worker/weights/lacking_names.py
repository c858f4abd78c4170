"""The name that a safetensors checkpoint would have for a missing tensor, for the error message: as
it calls the same one of another layer, or with what it has in front of the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import takewhile

from penstock.families.tensor_names import TensorNames
from penstock.families.tower_names import TowerNames, file_names
from penstock_worker.weights.family_names import in_file
from penstock_worker.weights.stored import StoredTensor

Tensors = Mapping[str, StoredTensor]
"""A checkpoint's, by our names."""

_NUMBER = re.compile(r"(?:(?<=layers\.)|(?<=experts\.)|(?<=layerwise\.)|(?<=spatial\.))\d+")
_LAYER = re.compile(r"(?:^|(?<=\.))(layers|h|blocks|resblocks)\.\d+\.")
_KINDS = (".weight", ".bias")
_HEAD = "lm_head."
_MOST = 10
"""Names that an error gives."""


def decoder_name(name: str, tensors: Tensors, names: TensorNames) -> str:
    """Returns the files' name for a tensor of ours that a decoder lacks."""
    if (found := name_of_another(name, tensors)) is not None:
        return found
    inner, (begin, layers) = in_file(name, names), _around_layers(tensors)
    alike = [
        stored.name.endswith(ours)
        for ours, stored in tensors.items()
        if ours.startswith("layers.") == name.startswith("layers.")
    ]
    if alike and all(alike):  # of the names that the family's files have, these have ours
        inner = name
    if inner.startswith(_HEAD):  # is next to the module that has the layers
        outer, _, module = begin.removesuffix(".").rpartition(".")
        return f"{outer}.{inner}" if outer and module == "model" else inner
    return begin + re.sub(r"^layers(?=\.\d)", layers, inner)


def tower_name(name: str, tensors: Tensors, names: TowerNames) -> str:
    """Returns the files' name for a tensor of ours that a tower or a projector lacks; several where
    files differ."""
    if (found := name_of_another(name, tensors)) is not None:
        return found
    begun = [(each, f"model.{each}") for each in file_names(name, names)]
    likeness = {
        each: max((_shared(each, other.name) for other in tensors.values()), default=0)
        for both in begun
        for each in both
    }
    likely = [max(both, key=lambda each: likeness[each]) for both in begun]
    likely.sort(key=lambda each: (-likeness[each], each))
    return " or ".join(likely[:_MOST]) or name


def name_of_another(name: str, tensors: Tensors) -> str | None:
    """Returns the name by that of the same tensor of another layer, or another expert, or of a
    module's other kind; None: there is none."""
    numbers = _NUMBER.findall(name)
    for other, kind, own in _alike(name):
        pattern = re.compile(r"\d+".join(map(re.escape, _NUMBER.split(other))))
        for ours, stored in tensors.items():
            if pattern.fullmatch(ours) and stored.name.endswith(kind):
                found = _with_numbers(stored.name, _NUMBER.findall(ours), numbers)
                return found.removesuffix(kind) + own
    return None


def _alike(name: str) -> Iterator[tuple[str, str, str]]:
    """The name itself, then that of the module's other kind, with its kind and the name's own."""
    yield name, "", ""
    for kind, other in (("weight", "bias"), ("bias", "weight")):
        if name.endswith(f".{kind}"):
            yield name.removesuffix(kind) + other, other, kind


def _with_numbers(theirs: str, old: list[str], new: list[str]) -> str:
    """A file's name with the numbers of layer and expert in the place of others."""
    done, rest = "", theirs
    for before, after in zip(old, new, strict=True):
        begin, found, end = rest.partition(f".{before}.")
        if found:
            done, rest = f"{done}{begin}.{after}", f".{end}"
    return done + rest


def _around_layers(tensors: Tensors) -> tuple[str, str]:
    """What the files have in front of their layers, and what they call these."""
    for ours, stored in tensors.items():
        match = _LAYER.search(stored.name) if ours.startswith("layers.") else None
        if match is not None:
            return stored.name[: match.start()], match[1]
    outside = [(ours, stored.name) for ours, stored in tensors.items() if _HEAD not in ours]
    begins = (name.removesuffix(ours) for ours, name in outside if name.endswith(ours))
    return next(begins, ""), "layers"


def _shared(name: str, other: str) -> int:
    """Parts with which both names begin."""
    pairs = zip(name.split("."), other.split("."), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
