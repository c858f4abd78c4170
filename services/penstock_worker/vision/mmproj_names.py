"""Names of the tensors in llama.cpp's mmproj files, and ours."""

from __future__ import annotations

import re

from penstock.formats.gguf import GGUFFile
from penstock_worker.vision.document_names import DOCUMENTS, of_document_file
from penstock_worker.vision.mobilenet import MMPROJ, in_mobilenet_file, of_mobilenet_file
from penstock_worker.vision.resampler import in_resampler_file, of_resampler
from penstock_worker.weights.files import read_tensors
from penstock_worker.weights.stored import StoredTensor

_LAYER = re.compile(r"v\.blk\.(\d+)\.(\w+)\.(weight|bias|(?:in|out)put_(?:min|max))")
_OUR_LAYER = re.compile(r"layers\.(\d+)\.(\w+)(?:\.(\w+))?")
_DEEPSTACK = re.compile(r"v\.deepstack\.(\d+)\.(\w+)\.(weight|bias)")
IN_LAYER = {
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_qkv": "qkv",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "attn_out": "out_proj",
    "ln1": "norm1",
    "ln2": "norm2",
    "ffn_gate": "gate_proj",
    "ffn_up": "up_proj",
    "ffn_down": "down_proj",
}
_SCALES = {"ls1": "scale1", "ls2": "scale2"}
_FOUR_NORMS = {"attn_post_norm": "norm2", "ln2": "norm3", "ffn_post_norm": "norm4"}
"""Norms of Gemma 4, whose layers have as many."""
_SWAPPED = {"ffn_up": "down_proj", "ffn_down": "up_proj"}
_IN_MERGER = {"norm": "norm", "fc1": "1", "fc2": "2"}
_MODULES = {
    "v.patch_embd": "patch_embedding",
    "v.position_embd": "position_embedding",
    "v.pre_ln": "first_norm",
    "v.norm_embd": "patch_norm",
    "v.post_ln": "last_norm",
    "mm.model.fc": "projector",
    "mm.input_projection": "projector",
    "mm.soft_emb_norm": "projector.norm",
    "mm.input_norm": "projector.norm",
    "mm.patch_merger": "projector.merging",
    "mm.post_norm": "projector.norm",
    "mm.gate": "projector.gate_proj",
    "mm.up": "projector.up_proj",
    "mm.down": "projector.down_proj",
    "mm.0": "projector.1",
    "mm.1": "projector.1",
    "mm.2": "projector.2",
    "mm.merger.fc1": "projector.squares.1",
    "mm.merger.fc2": "projector.squares.2",
    "mm.model.mlp.0": "projector.norm",
    "mm.model.mlp.1": "projector.1",
    "mm.model.mlp.3": "projector.2",
}
_OF_LLAMA4 = {
    "v.patch_embd": "patch_matrix",
    "mm.model.mlp.1": "projector.adapter.1",
    "mm.model.mlp.2": "projector.adapter.2",
    "mm.model.fc": "projector.1",
}
_OF_SQUARES = {
    "v.position_embd": "axial_positions",
    "v.patch_norm.1": "pixel_norm",
    "v.patch_norm.2": "patch_norm",
    "v.patch_norm.3": "first_norm",
}
"""Gemma 4 12B's names, and ours."""
_MERGING = "v.vit_merger."
_IN_MERGING = IN_LAYER | {"ds_ln": "norm2", "ds_ffn_up": "up_proj", "ds_ffn_down": "down_proj"}
_WHOLE = {
    "v.class_embd": "class_embedding",
    "model.image_newline": "projector.newline",
    "v.patch_embd.weight.1": "patch_embedding.1.weight",
    "v.std_bias": "projector.std_bias",
    "v.std_scale": "projector.std_scale",
}
_FLAT = frozenset(
    {"class_embedding", "position_embedding.weight", "projector.end", "projector.newline"}
)
_NOT_NEEDED = ("a.", "mm.a.", "v.token_embd.img_break", "v.head.")
"""What a model hears with; a row of the decoder's own table; what pools SigLIP's patches."""


class MmprojNames:
    """Our names for the tensors of one file."""

    def __init__(self, file: GGUFFile) -> None:
        self._tensors = file.tensors
        self._whole = dict(_WHOLE)
        if "v.patch_embd.weight.1" in file.tensors:
            self._whole["v.patch_embd.weight"] = "patch_embedding.0.weight"
        kind = file.metadata.get(
            "clip.projector_type", file.metadata.get("clip.vision.projector_type")
        )
        self._kind = kind
        self._modules = dict(_MODULES)
        if str(kind).endswith("vl_merger") or kind == "qwen2.5o":
            self._modules["v.post_ln"] = "projector.norm"  # that of the merger
        if kind == "glm4v":
            self._modules["mm.model.fc"] = "projector.1"
        if kind == "llama4":
            self._modules |= _OF_LLAMA4
            self._whole["v.position_embd.weight"] = "positions_before_class"
        if kind == "kimik25":
            self._whole["v.position_embd.weight"] = "position_grid"
        if kind == "janus_pro":
            self._modules["mm.1"] = "projector.2"
        if kind == "step3vl":
            self._modules |= {"mm.0": "projector.halving.0", "mm.1": "projector.halving.1"}
        if kind == "minicpmv4_6":
            self._modules |= {"mm.up": "projector.1", "mm.down": "projector.2"}
        self._in_layer = IN_LAYER | (_SWAPPED if _is_swapped(file) else {})
        if kind == "llama4":
            # The name of the converter's releases since Gemma 4's, which has it for another norm.
            self._in_layer = self._in_layer | {"attn_post_norm": "norm2"}
        if kind == "gemma4v":
            self._modules["v.position_embd"] = "axial_positions"
            self._in_layer = self._in_layer | _FOUR_NORMS
        if kind == "gemma4uv":
            self._modules |= _OF_SQUARES
            self._whole["v.patch_embd.weight"] = "patch_matrix.weight"
        found = {int(match[1]) for match in map(_DEEPSTACK.fullmatch, file.tensors) if match}
        self._deepstack = {layer: number for number, layer in enumerate(sorted(found))}

    def ours(self, name: str) -> str | None:
        """Returns our name for a tensor; None for one that isn't needed. An unknown name stays."""
        if name.startswith(_NOT_NEEDED):
            return None
        if self._kind in DOCUMENTS:
            return of_document_file(name)
        if self._kind == MMPROJ:
            return of_mobilenet_file(name)
        if (resampled := of_resampler(name)) is not None:
            return resampled
        if name in self._whole:
            return self._whole[name]
        if (layer := _LAYER.fullmatch(name)) is not None:
            return self._of_layer(*layer.groups()) or name
        merger = _DEEPSTACK.fullmatch(name)
        if merger is not None and merger[2] in _IN_MERGER:
            number = self._deepstack[int(merger[1])]
            return f"projector.deepstack.{number}.{_IN_MERGER[merger[2]]}.{merger[3]}"
        module, _, kind = name.rpartition(".")
        within = _IN_MERGING.get(module.removeprefix(_MERGING))
        if module.startswith(_MERGING) and within is not None:
            return f"merging.{within}.{kind}"
        return f"{self._modules[module]}.{kind}" if module in self._modules else name

    def theirs(self, name: str) -> str:
        """Returns the file's name for a tensor of ours that it lacks: of several that files have,
        the one whose module is there, or all. An unknown name stays."""
        if self._kind == MMPROJ:
            return in_mobilenet_file(name)
        if (layer := _OUR_LAYER.fullmatch(name)) is not None:
            found = [
                f"v.blk.{layer[1]}.{stem}.{layer[3] or 'weight'}"
                for stem, ours in (self._in_layer | _SCALES).items()
                if ours == layer[2]
            ]
            return found[0] if found else name
        if self._kind == "resampler" and name.startswith("projector."):
            return in_resampler_file(name)
        module, _, kind = name.rpartition(".")
        found = [theirs for theirs, ours in self._whole.items() if ours == name]
        found += [f"{theirs}.{kind}" for theirs, ours in self._modules.items() if ours == module]
        known = {each.rpartition(".")[0] for each in self._tensors}
        there = [each for each in found if each.rpartition(".")[0] in known]
        return " or ".join(there or found) or name

    def _of_layer(self, number: str, module: str, kind: str) -> str | None:
        if module in _SCALES:
            return f"layers.{number}.{_SCALES[module]}"
        found = self._in_layer.get(module)
        return None if found is None else f"layers.{number}.{found}.{kind}"


def mmproj_tensors(path: str) -> dict[str, StoredTensor]:
    """Returns a file's tensors by our names. Raises UnsupportedModel for a broken file,
    ModelNotFound for a missing one."""
    file = GGUFFile(path, vocabulary=False)
    return read_tensors(file, MmprojNames(file).ours, _FLAT)


def mmproj_name(path: str, name: str) -> str:
    """Returns the name that a file has for a tensor of ours."""
    return MmprojNames(GGUFFile(path, vocabulary=False)).theirs(name)


def _is_swapped(file: GGUFFile) -> bool:
    """Whether the file calls the feed-forward's first product its last, as those of the converters
    before 2025 do."""
    down = file.tensors.get("v.blk.0.ffn_down.weight")
    hidden = file.metadata.get("clip.vision.embedding_length")
    return down is not None and len(down.shape) == 2 and down.shape[1] == hidden != down.shape[0]
