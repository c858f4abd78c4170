"""The layers after which a target model's hidden states are taken for a draft head."""

from __future__ import annotations

from penstock.errors import StartupError
from penstock.families.eagle3 import default_aux_layers
from penstock.model.config import HeadConfig, ModelConfig
from penstock.model.mechanisms import HYPER_CONNECTIONS
from penstock.prepare import load_manifest
from penstock.protocol.to_worker import Setup
from penstock_worker.models.aux_hidden import AuxHidden


def aux_hidden_for(config: ModelConfig, setup: Setup) -> AuxHidden | None:
    """Returns what is to be taken of a model, if a head drafts for it; else None. Raises
    ModelNotFound, UnsupportedModel, or StartupError where the model hasn't as many layers."""
    said = setup.speculation
    if said is None or said.method not in ("eagle3", "mtp"):
        return None
    if said.method == "mtp":
        return AuxHidden((config.num_layers,))
    if config.hyper_connections is not None:
        raise StartupError(
            f"speculative_config: a head of method {said.method} reads one residual, and the model"
            f" has {HYPER_CONNECTIONS}; method suffix is allowed with every model"
        )
    head = load_manifest(said.model).config
    stated = head.aux_layers if isinstance(head, HeadConfig) else ()
    layers = stated or default_aux_layers(config.num_layers)
    if not 0 <= min(layers) <= max(layers) <= config.num_layers:
        raise StartupError(
            f"speculative_config: the head in {said.model} reads behind layers"
            f" {', '.join(map(str, layers))}; the model has {config.num_layers}"
        )
    return AuxHidden(layers)
