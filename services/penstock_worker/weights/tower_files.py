"""The tensors of a model's vision or audio tower, by our names: from the hub's files, and from
llama.cpp's mmproj files."""

from __future__ import annotations

import re
from typing import Literal

from penstock.errors import UnsupportedModel
from penstock.families.tower_names import SPACE, WHISPER, TowerNames, namer
from penstock.formats.gguf import GGUFFile
from penstock.model.prepared_model import WeightFiles
from penstock_worker.weights.files import read_tensors, safetensors_tensors
from penstock_worker.weights.stored import StoredTensor

Part = Literal["vision", "audio"]
"""The part of a model that a tower is for."""
_FLAT = frozenset(
    {
        "class_embedding",
        "position_embedding.weight",
        "projector.end",
        "projector.newline",
        *(f"conv{which}.bias" for which in ("1", "2", "2d1", "2d2", "2d3")),
    }
)
"""Our names of vectors and tables around which mmproj files have dimensions of one element."""
_LEVEL = re.compile(r"(?<=^projector\.deepstack\.)\d+")


def tower_tensors(files: WeightFiles, part: Part) -> tuple[dict[str, StoredTensor], TowerNames]:
    """Returns the tensors by our names, and the names that the files have. Raises UnsupportedModel
    for broken files and those without such tensors, ModelNotFound for missing ones."""
    if files.mmproj:
        return _of_mmproj(files.mmproj, part)
    if files.format != "safetensors":
        raise UnsupportedModel("vision and audio parts are read only from safetensors files")
    names = hub_names(files.tower, part)
    return safetensors_tensors(files.files, namer(names), files.quantised), names


def hub_names(tower: str, part: Part) -> TowerNames:
    """Returns the names in the hub's files of a family's models (see WeightFiles.tower)."""
    # Here, because this imports every family.
    from penstock.families.served import AUDIO_FAMILIES
    from penstock.families.vision.served import VISION_FAMILIES

    if part == "audio":
        return AUDIO_FAMILIES[tower].hub_names if tower in AUDIO_FAMILIES else WHISPER
    return VISION_FAMILIES[tower].hub_names if tower in VISION_FAMILIES else SPACE


def _of_mmproj(path: str, part: Part) -> tuple[dict[str, StoredTensor], TowerNames]:
    file = GGUFFile(path, vocabulary=False)
    names = mmproj_names(file, part)
    ours_of = namer(names, stays=part == "vision")
    levels = {int(found) for name in file.tensors for found in _LEVEL.findall(ours_of(name) or "")}
    ordered = sorted(levels)

    def ours(name: str) -> str | None:
        """Files have the number of the layer in front of a level."""
        found = ours_of(name)
        return found and _LEVEL.sub(lambda level: str(ordered.index(int(level[0]))), found)

    return read_tensors(file, ours, _FLAT), names


def mmproj_names(file: GGUFFile, part: Part) -> TowerNames:
    """Returns the names that an mmproj file has for a tower's tensors."""
    from penstock.prepare.mmproj.reading import EARS, KINDS

    if part == "audio":
        kinds = [str(file.metadata.get(f"clip.{of}projector_type")) for of in ("audio.", "")]
        heard = [EARS.get(kind) or KINDS.get(kind) for kind in kinds]
        return next((each.names for each in heard if each is not None), KINDS["qwen2a"].names)
    kind = file.metadata.get("clip.projector_type", file.metadata.get("clip.vision.projector_type"))
    names = KINDS.get(str(kind), KINDS["mlp"]).names
    if not _is_swapped(file):
        return names
    up, down = "v.blk.*.ffn_up", "v.blk.*.ffn_down"
    return {**names, up: names[down], down: names[up]}


def _is_swapped(file: GGUFFile) -> bool:
    """Whether the file calls the feed-forward's first product its last, as those of the converters
    before 2025 do."""
    down = file.tensors.get("v.blk.0.ffn_down.weight")
    hidden = file.metadata.get("clip.vision.embedding_length")
    return down is not None and len(down.shape) == 2 and down.shape[1] == hidden != down.shape[0]
