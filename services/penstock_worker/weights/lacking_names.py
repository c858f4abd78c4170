"""How a safetensors checkpoint would call a tensor that it lacks, for whoever reads the error: as
it calls the same one of another layer, or with what it has in front of the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import product, takewhile

from penstock.families.tensor_names import TensorNames
from penstock_worker.weights.family_names import in_file
from penstock_worker.weights.stored import StoredTensor

Tensors = Mapping[str, StoredTensor]
"""A checkpoint's, by our names."""

_NUMBER = re.compile(r"(?:(?<=layers\.)|(?<=experts\.)|(?<=layerwise\.)|(?<=spatial\.))\d+")
_LAYER = re.compile(r"(?:^|(?<=\.))(layers|h|blocks|resblocks)\.\d+\.")
_KINDS = (".weight", ".bias")
_HEAD = "lm_head."
_ALONE = (
    "class_embedding",
    "connector.modality_projection.proj",
    "embed_vision.embedding_projection",
    "high_res_vision_alpha",
    "high_res_vision_neck.conv1",
    "high_res_vision_neck.conv2",
    "high_res_vision_proj.conv1",
    "high_res_vision_proj.conv2",
    "image_newline",
    *(f"image_pooling_2d.w{part}" for part in "qkvo"),
    *(f"image_projector.w{number}" for number in (1, 2, 3)),
    "image_vit.patch_embedding",
    "image_vit.positional_embedding",
    "multi_modal_projector.linear_1",
    "patch_embed.pos_emb",
    "glb_GN",
    "global_img_feature_extensor",
    *(f"img_projection.{number}" for number in (0, 2)),
    "sub_GN",
    "sub_img_feature_extensor",
    "transformer.wte.new_embedding",
)
"""Tensors and modules of towers and projectors of which a file has no other with the same in
front."""
_MOST = 10
"""Names that an error gives."""


def decoder_name(name: str, tensors: Tensors, names: TensorNames) -> str:
    """Returns the files' name for a tensor of ours that a decoder lacks."""
    if (found := _of_another(name, tensors)) is not None:
        return found
    inner, (begin, layers) = in_file(name, names), _around_layers(tensors)
    alike = [
        stored.name.endswith(ours)
        for ours, stored in tensors.items()
        if ours.startswith("layers.") == name.startswith("layers.")
    ]
    if alike and all(alike):  # of the names that the family's files have, these have ours
        inner = name
    if inner.startswith(_HEAD):  # stands beside the module that has the layers
        outer, _, module = begin.removesuffix(".").rpartition(".")
        return f"{outer}.{inner}" if outer and module == "model" else inner
    return begin + re.sub(r"^layers(?=\.\d)", layers, inner)


def tower_name(
    name: str, tensors: Tensors, from_hub: Callable[[str], str | None], modules: Collection[str]
) -> str:
    """Returns the files' name for a tensor of ours that a tower or a projector lacks; several where
    files differ. from_hub: our name for one of theirs.  modules: in the names that it knows."""
    if (found := _of_another(name, tensors)) is not None:
        return found
    named = [each.name for each in tensors.values()]
    kinds = [kind for kind in _KINDS if name.endswith(kind)] + ["", ".weight"]
    begins = _begins(name, named)
    every = product(begins, {*modules, *_ALONE}, dict.fromkeys(kinds))
    fitting = {each for each in map("".join, every) if from_hub(each) == name}
    if not fitting:  # the files have our names, with something in front
        fitting = {
            each for each in (f"{begin}{name}" for begin in begins) if from_hub(each) == name
        }
    likeness = {each: max(_shared(each, other) for other in named) for each in fitting}
    ordered = sorted(fitting, key=lambda each: (-likeness[each], each))
    return " or ".join(ordered[:_MOST]) or name


def _of_another(name: str, tensors: Tensors) -> str | None:
    """The name by that of the same tensor of another layer, or another expert, or of a module's
    other kind."""
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


def _begins(name: str, named: Collection[str]) -> set[str]:
    """What may stand in front of a module's name: up to the number of the tensor's layer, or what
    stands in front of some module outside of all layers."""
    number = _NUMBER.search(name)
    matches = [(each, _LAYER.search(each)) for each in named]
    if number is not None:
        layers = [(each, match) for each, match in matches if match is not None]
        return {f"{each[: match.end(1)]}.{number[0]}." for each, match in layers}
    heads = {each if match is None else each[: match.start()] for each, match in matches}
    return {""} | {head[: dot.end()] for head in heads for dot in re.finditer(r"\.", head)}


def _shared(name: str, other: str) -> int:
    """Parts with which both names begin."""
    pairs = zip(name.split("."), other.split("."), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
