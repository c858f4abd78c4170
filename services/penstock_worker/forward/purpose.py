"""What a model is used for: what is computed of its layers' rows."""

from __future__ import annotations

from penstock.model.config import ModelConfig
from penstock.protocol.to_worker import Setup
from penstock_worker.adapters.models import AdaptableModel, adaptable_decoder
from penstock_worker.forward.interface import require_adaptable
from penstock_worker.weights.weights import Weights


class Purpose:
    """The purpose of a model that generates: logits. Other purposes are subclasses."""

    headless = False
    """Whether rows after the last norm are wanted in place of logits."""

    def take(self, weights: Weights) -> None:
        """Takes the extra tensors that the purpose needs. Called before the model takes its
        own."""

    def adaptable(self, config: ModelConfig, setup: Setup) -> AdaptableModel | None:
        """Returns what adapters may change; None if the setup asks for no adapters. Raises Unable
        for a model that they can change nothing in."""
        if not setup.max_loras:
            return None
        require_adaptable(config, setup)
        return adaptable_decoder(
            config, takes_whole=setup.lora_whole_matrices, takes_experts=setup.lora_experts
        )


LOGITS = Purpose()
