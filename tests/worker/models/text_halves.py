"""Decoders that transformers has with their heads behind a tower only."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


@cache
def model_class(family: str) -> Any:
    """A class that maps tokens to logits, as transformers' class with the tower does."""
    import transformers

    theirs = getattr(transformers, f"{family}TextModel")

    class Decoder(theirs.__base__):  # type: ignore[name-defined, misc]
        config_class = getattr(transformers, f"{family}TextConfig")

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = theirs(config)
            self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(self, input_ids: Tensor) -> SimpleNamespace:
            hidden = self.model(input_ids).last_hidden_state
            return SimpleNamespace(
                logits=LOGITS.get(family, plain)(self.lm_head(hidden), self.config)
            )

    Decoder.__name__ = f"{family}ForCausalLM"
    return Decoder


def plain(logits: Tensor, config: Any) -> Tensor:
    return logits


def capped(logits: Tensor, config: Any) -> Tensor:
    most = config.final_logit_softcapping
    return torch.tanh(logits * config.output_multiplier / most) * most


LOGITS = {"MuseGlimmer": capped}
