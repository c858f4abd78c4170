"""Model families, by architecture; imported when first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.errors import UnsupportedModel

if TYPE_CHECKING:
    from penstock_worker.models.decoder import DecoderModel

_FAMILIES = {
    "llama": ("penstock_worker.models.llama", "LlamaModel"),
    "qwen2": ("penstock_worker.models.qwen2", "Qwen2Model"),
    "qwen3": ("penstock_worker.models.qwen3", "Qwen3Model"),
}


def model_class(architecture: str) -> type[DecoderModel]:
    """Raises UnsupportedModel for an architecture without a native family."""
    if architecture not in _FAMILIES:
        raise UnsupportedModel(
            f"the architecture {architecture!r} is not served; {', '.join(_FAMILIES)} are"
        )
    module, name = _FAMILIES[architecture]
    found: type[DecoderModel] = getattr(import_module(module), name)
    return found
