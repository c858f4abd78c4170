"""The draft head in a model's own checkpoint (method mtp): where it is, and how it differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

JOIN = "eh_proj"
"""Our name of the product that joins embedding and hidden state."""


@dataclass(frozen=True)
class OwnHead:
    """The head of a family's checkpoints: a layer like the model's last one that attends, and what
    stands beside it. Its embedding and its output head are the model's where it has none."""

    modules: Mapping[str, str]
    """The file's name of a module that stands beside the layer -> ours."""
    prefix: str | None = None
    """What its tensors' names begin with; its layers are named `layers.0`, … after that. None: it
    is the layer after the model's last one, with everything."""
    normed_result: bool = False
    """Whether further drafts are made of the output of the head's norm (see HeadConfig)."""

    def begins(self, layers: int) -> str:
        """What its tensors' names begin with, in a checkpoint of so many layers."""
        return f"layers.{layers}." if self.prefix is None else self.prefix

    def join(self, layers: int) -> str:
        """The file's name of the product that joins embedding and hidden state."""
        theirs = next(theirs for theirs, ours in self.modules.items() if ours == JOIN)
        return self.begins(layers) + theirs

    def our_name(self, name: str, layers: int) -> str | None:
        """Maps a tensor's name in a checkpoint of so many layers to ours, but for those of the
        layer, which stay as the family's files have them. None: it is none of the head's, or of a
        further layer of it."""
        begins = self.begins(layers)
        if not name.startswith(begins):
            return None
        own = name.removeprefix(begins)
        module, _, kind = own.rpartition(".")
        if module in self.modules:
            return f"{self.modules[module]}.{kind}"
        if self.prefix is None:
            return f"layers.0.{own}"
        further = own.startswith("layers.") and not own.startswith("layers.0.")
        return None if further else own


LAYER_BEHIND_THE_LAST = OwnHead(
    {
        "enorm": "enorm",
        "hnorm": "hnorm",
        "eh_proj": JOIN,
        "embed_tokens": "embed_tokens",
        "shared_head.head": "lm_head",
        "shared_head.norm": "norm",
    }
)
"""The head of DeepSeek-V3 and GLM-4.5, and of GGUF files of any family (DeepSeek-AI, "DeepSeek-V3
technical report", 2024, section 2.2)."""

BESIDE_THE_LAYERS = OwnHead(
    {
        "pre_fc_norm_embedding": "enorm",
        "pre_fc_norm_hidden": "hnorm",
        "fc": JOIN,
        "embed_tokens": "embed_tokens",
        "norm": "norm",
    },
    prefix="mtp.",
    normed_result=True,
)
"""The head of Qwen3-Next and Qwen3.5 (Qwen team, "Qwen3-Next", 2025; what it computes, as vLLM's
models qwen3_next_mtp and qwen3_5_mtp have it)."""
