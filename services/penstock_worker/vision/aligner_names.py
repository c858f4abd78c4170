"""Names of the tensors of DeepSeek-VL's and Janus's projectors, of DeepSeek-VL's second tower, of a
product in Janus's layers, and of what follows these in its makers' files, and ours."""

from __future__ import annotations

import re

from penstock_worker.vision.document_names import of_document

SECOND = "second."
"""In front of our names of a second tower's tensors."""
_ALIGNER = re.compile(r"^(?:model\.)?aligner\.(.+)\.(weight|bias)$")
_OF_ALIGNER = {
    "linear1": "projector.1",
    "linear2": "projector.2",
    "fc1": "projector.1",
    "hidden_layers.0": "projector.2",
    "layers.0": "projector.1",  # the makers count modules
    "layers.2": "projector.2",
    "vision_proj": "projector.own",
    "high_res_vision_proj": "projector.beside",
    "proj": "projector.out",
}
_LARGE = re.compile(
    r"^(?:model\.)?high_res_vision_(model|neck|proj|alpha)(?:\.(?:vision_encoder\.)?(.+))?$"
)
_OUTPUT = re.compile(
    r"^(?:model\.)?vision_model\.encoder\.layers\.(\d+)\.self_attn\.projection_layer\.(weight|bias)$"
)


_OUTSIDE = re.compile(r"^vision_model\.vision_tower\.(norm|attn_pool)\.(.+)$")
"""What stands behind the layers of the makers' tower."""


def of_aligner(name: str) -> str | None:
    """Returns our name for a tensor; None for another. An unknown name stays as it is, without its
    prefix."""
    if (outside := _OUTSIDE.match(name)) is not None:
        return f"{'last_norm' if outside[1] == 'norm' else 'head'}.{outside[2]}"
    if (output := _OUTPUT.match(name)) is not None:
        return f"layers.{output[1]}.out_proj.{output[2]}"
    if (large := _LARGE.match(name)) is not None:
        return _of_large(large[1], large[2] or "")
    found = _ALIGNER.match(name)
    return None if found is None else f"{_OF_ALIGNER.get(found[1], found[1])}.{found[2]}"


def _of_large(part: str, inner: str) -> str:
    """The second tower is SAM's, under the names that DeepSeek-OCR 2 has."""
    if part == "alpha":
        return "projector.alpha"
    if part != "model":
        inner = f"{part}.{inner}"
    found = of_document(f"sam_model.{inner}") or inner
    if part == "neck":
        return found.replace("projector.neck.", "projector.between.", 1)
    return found if found.startswith("projector.") else f"{SECOND}{found}"
