"""The layers after which a target model's hidden states are taken for a draft head."""

from __future__ import annotations

from penstock.errors import StartupError
from penstock.families.eagle3 import default_taps
from penstock.model.config import HeadConfig, ModelConfig
from penstock.prepare import load_manifest
from penstock.protocol.to_worker import Setup
from penstock_worker.models.taps import Taps


def taps_for(config: ModelConfig, setup: Setup) -> Taps | None:
    """Returns what is to be taken of a model, if a head drafts for it; else None. Raises
    ModelNotFound, UnsupportedModel, or StartupError where the model hasn't as many layers."""
    said = setup.speculation
    if said is None or said.method not in ("eagle3", "mtp"):
        return None
    if said.method == "mtp":
        return Taps((config.num_layers,))
    head = load_manifest(said.model).config
    stated = head.taps if isinstance(head, HeadConfig) else ()
    taps = stated or default_taps(config.num_layers)
    if not 0 <= min(taps) <= max(taps) <= config.num_layers:
        raise StartupError(
            f"speculative_config: the head in {said.model} reads behind layers"
            f" {', '.join(map(str, taps))}; the model has {config.num_layers}"
        )
    return Taps(taps)
