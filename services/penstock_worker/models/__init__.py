"""Model classes by architecture."""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import FAMILIES
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.models.llama import LlamaModel


def model_class(architecture: str) -> type[DecoderModel]:
    """Returns the class that implements the architecture. Raises UnsupportedModel for an unknown
    one."""
    if architecture not in FAMILIES:
        raise UnsupportedModel(
            f"the architecture {architecture!r} is not served; {', '.join(FAMILIES)} are"
        )
    # A family whose layers aren't Llama's has a DecoderModel of its own beside it.
    return LlamaModel
