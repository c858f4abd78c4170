"""What adapters are fitted to: a model's modules, and what files call them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.families.finding import served_family
from penstock.model.config import ModelConfig
from penstock_worker.adapters.adaptable import (
    EMBEDDING,
    HEAD,
    adaptable_ends,
    adaptable_modules,
    expert_modules,
    whole_matrices,
)
from penstock_worker.weights.family_names import by_our_names
from penstock_worker.weights.names import from_gguf, from_hub
from penstock_worker.weights.stored import StoredTensor

_EXPERT_OF_GGUF = re.compile(r"(blk\.\d+\.ffn_\w+_exps)\.(\d+)\.weight")

Renamed = Callable[[StoredTensor, str, str], dict[str, StoredTensor]]
"""Maps a tensor, its file's name of it and the adapter's format to the tensors that it is by our
names; to none if it is no part of the model. Raises UnsupportedModel for one that can't be cut."""


@dataclass(frozen=True, kw_only=True)
class AdaptableModel:
    """A model as adapters see it."""

    name: str
    """Name of its family."""
    modules: Mapping[str, tuple[int, int]]
    """(outputs, inputs) by our name, of those that an adapter may change."""
    experts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """(outputs, inputs) by our name, of mixtures of experts; `modules` has them too if the settings
    let it."""
    experts_by_turns: bool = False
    """Whether experts' gates and ups are one parameter whose outputs are theirs by turns."""
    experts_turned: bool = False
    """Whether PEFT takes the inputs of experts' matrices for outputs, as the model's class has
    them transposed and doesn't say so."""
    renamed: Renamed
    whole: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Rows and columns of the large matrices that an adapter may bring, by module."""
    takes_whole: bool = False
    """Whether the settings let it."""
    heads: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """(outputs, inputs) of the layers of a classification head, which may be changed in any way."""
    unused: tuple[str, ...] = ()
    """How names of modules begin that this server computes nothing with. What an adapter has for
    them is passed over."""
    gguf: tuple[str, ...] = ()
    """Values of general.architecture of files that fit."""
    tied: bool = False
    """Whether the output head has the embedding's matrix."""


def adaptable_decoder(
    config: ModelConfig, *, takes_whole: bool = False, takes_experts: bool = False
) -> AdaptableModel:
    """A model that generates."""
    family, experts = served_family(config.architecture), expert_modules(config)
    modules = adaptable_modules(config) | adaptable_ends(config)
    return AdaptableModel(
        name=family.name,
        modules=modules | experts if takes_experts else modules,
        experts=experts,
        experts_by_turns=bool(family.hub_names.alternating),
        experts_turned=family.hub_names.turned == "always",
        renamed=decoder_names(config),
        whole=whole_matrices(config),
        takes_whole=takes_whole,
        gguf=tuple(each for each in (family.gguf, *family.gguf_also) if each),
        tied=config.tie_word_embeddings,
    )


def adaptable_headless(
    config: ModelConfig,
    *,
    labels: int = 0,
    answers: bool = False,
    takes_whole: bool = False,
    takes_experts: bool = False,
) -> AdaptableModel:
    """A decoder that makes vectors. `labels`: of its classification head; 0: it has none.
    `answers`: its scores are made of the output head, which can't be changed then."""
    model = adaptable_decoder(config, takes_whole=takes_whole, takes_experts=takes_experts)
    return AdaptableModel(
        name=model.name,
        modules={name: shape for name, shape in model.modules.items() if name != HEAD},
        experts=model.experts,
        experts_by_turns=model.experts_by_turns,
        experts_turned=model.experts_turned,
        renamed=model.renamed,
        whole={EMBEDDING: model.whole[EMBEDDING]},
        takes_whole=takes_whole,
        heads={"score": (labels, config.hidden_size)} if labels else {},
        unused=(*(() if answers else (HEAD,)), *(() if labels else ("score",))),
        gguf=model.gguf,
    )


def decoder_names(config: ModelConfig) -> Renamed:
    """Maps a tensor's name to ours as it is done for a decoder's checkpoint."""
    family = served_family(config.architecture)

    def renamed(stored: StoredTensor, name: str, format: str) -> dict[str, StoredTensor]:
        if format == "gguf":
            return by_our_names({_from_gguf(name): stored}, family.gguf_names, config)
        read = from_hub(name)
        return {} if read is None else by_our_names({read: stored}, family.hub_names, config)

    return renamed


def _from_gguf(name: str) -> str:
    """An expert's part of a tensor that has those of all, as blk.0.ffn_up_exps.3.weight, is a
    tensor of its own."""
    match = _EXPERT_OF_GGUF.fullmatch(name)
    if match is None:
        return from_gguf(name)
    stack, expert = match.groups()
    return from_gguf(f"{stack}.weight").replace(".stacked.", f".experts.{expert}.")
