"""Tiny Gemma 4s with assistants, in folders: transformers' own with random weights, and what its
own generator of candidates says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig
from transformers.generation.candidate_generator import (
    SinglePositionMultiTokenCandidateGenerator,
)

from tests.worker.models.case_sizes import mixed
from tests.worker.speculation.head_folders import COMMON, GROUPED, prepared_folder, randomise
from tests.worker.speculation.slow_heads import HIDDEN, VOCAB, circle

WINDOW, GROUPS = 9, 43
SIZES = COMMON | GROUPED | {"global_head_dim": 32, "sliding_window": WINDOW}
NO_INPUTS = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
OF_12B = "of 12B"
CASES: dict[str, dict[str, Any]] = {
    "the last one stores": {
        "layer_types": mixed("sliding", "full", "sliding", "full"),
        "hidden_size_per_layer_input": 12,
        "vocab_size_per_layer_input": VOCAB,
    },
    "the last ones share": {
        "num_hidden_layers": 5,
        "layer_types": mixed("full", "full", "sliding", "sliding", "full"),
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 0,
    },
    "keys are values, and ids in groups": {
        "layer_types": mixed("sliding", "sliding", "full", "full"),
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 0,
    },
    OF_12B: {
        "layer_types": mixed("sliding", "full", "sliding", "full"),
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
    },
}
"""Settings of the model, by what its last layers do. Of those that store keys and values, the last
one sees everything in the first and third case, and stands in a window in the second."""
COUNTED = "the last ones share"
OWN: dict[str, Any] = {
    "num_hidden_layers": 3,
    "num_kv_shared_layers": 3,
    "layer_types": mixed("sliding", "full", "full"),
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 8,
    **NO_INPUTS,
}
"""Of the assistant."""


def class_of(case: str, name: str) -> Any:
    """transformers' class of that name for Gemma 4, which Gemma 4 12B has one of its own for."""
    return getattr(transformers, f"Gemma4{'Unified' if case == OF_12B else ''}{name}")


def assistant_config(case: str, **more: Any) -> Any:
    """`more`: of its layers, or of all of it."""
    alike = {key: CASES[case][key] for key in CASES[case] if "k_eq_v" in key or "global" in key}
    whole = {"backbone_hidden_size": HIDDEN, "num_centroids": GROUPS}
    whole |= {"centroid_intermediate_top_k": 12, "use_ordered_embeddings": "groups" in case}
    whole |= {key: more.pop(key) for key in [*more] if key in whole}
    text = SIZES | OWN | alike | more | {"tie_word_embeddings": True}
    if case == OF_12B:
        text = {key: value for key, value in text.items() if key not in NO_INPUTS}
    made = class_of(case, "TextConfig")(**text)
    return class_of(case, "AssistantConfig")(text_config=made, attn_implementation="eager", **whole)


@dataclass
class Assisted:
    """A model with its assistant: prepared, and as transformers computes both."""

    hub: Any
    assistant: Any
    folder: Path
    said: dict[str, Any]
    """The setting that asks for the assistant."""

    def next(self, tokens: list[int]) -> int:
        """The likeliest token behind these."""
        with torch.inference_mode():
            return int(self.hub(torch.tensor([tokens])).logits[0, -1].argmax())

    def drafts(self, tokens: list[int], most: int) -> list[int]:
        """What transformers' generator says behind these tokens, after a step over one token."""
        ids = torch.tensor([tokens])
        with torch.inference_mode():
            before = self.hub(ids[:, :-2], use_cache=True).past_key_values
            outputs = self.hub(
                ids[:, -2:-1],
                past_key_values=before,
                output_hidden_states=True,
                return_shared_kv_states=True,
            )
            generator = SinglePositionMultiTokenCandidateGenerator(
                ids,
                self.assistant,
                self.hub.get_input_embeddings(),
                GenerationConfig(max_length=10_000),
                {},
            )
            generator.num_assistant_tokens = most
            found, _ = generator.get_candidates(
                ids, {}, outputs, is_first_iteration=False, n_last_matches=0
            )
        drafts: list[int] = found[0, len(tokens) :].tolist()
        return drafts


def count_on(hub: Any, assistant: Any) -> None:
    """Makes both say mostly the id behind the last token's, whatever their layers add to it."""
    embeddings, step = circle()
    for model in (hub, assistant):
        for name, each in model.named_parameters():
            if name.endswith(("attention_layernorm.weight", "feedforward_layernorm.weight")):
                each.data.mul_(0.05 if ".post_" in name else 1.0)
        for name, each in model.named_buffers():
            if name.endswith("layer_scalar"):
                each.data.fill_(1.0)
        model.model.norm.weight.data.fill_(1.0)
    hub.model.embed_tokens.weight.data.copy_(embeddings)
    hub.lm_head.weight.data.copy_(embeddings @ step)
    assistant.model.embed_tokens.weight.data.copy_(embeddings @ step)
    joined = torch.cat((torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)), 1)
    assistant.pre_projection.weight.data.copy_(joined)


def assisted(case: str, folder: Path, *, counts: bool = False) -> Assisted:
    """Writes both. `counts`: what either says is mostly the next id."""
    settings = SIZES | CASES[case]
    config = class_of(case, "TextConfig")(**settings, attn_implementation="eager")
    hub = class_of(case, "ForCausalLM")(config).eval()
    more = {"hidden_size": HIDDEN} if counts else {}
    assistant = class_of(case, "AssistantForCausalLM")(assistant_config(case, **more)).eval()
    with torch.no_grad():
        randomise(hub, 1)
        randomise(assistant, 2)
        if assistant.masked_embedding is not None:
            order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))
            assistant.masked_embedding.token_ordering.copy_(order)
        if counts:
            count_on(hub, assistant)
    hub.save_pretrained(folder / "hub")
    # Buffers that no file has are theirs again.
    hub = class_of(case, "ForCausalLM").from_pretrained(folder / "hub", attn_implementation="eager")
    own = prepared_folder(write_assistant(assistant, folder / "assistant"), folder / "own")
    said = {"method": "mtp", "model": str(own)}
    return Assisted(hub, assistant, prepared_folder(folder / "hub", folder / "prepared"), said)


def write_assistant(assistant: Any, folder: Path, **said: Any) -> Path:
    """In the hub's format. `said`: other settings than config.json has by itself."""
    assistant.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    text = {key: value for key, value in said.items() if key in config["text_config"]}
    rest = {key: value for key, value in said.items() if key not in text}
    path.write_text(json.dumps(config | rest | {"text_config": config["text_config"] | text}))
    return folder


def random_tokens(count: int, seed: int = 3) -> list[int]:
    return torch.randint(VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
