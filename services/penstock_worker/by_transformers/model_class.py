"""Which of transformers' classes computes a model, and whether it can be served.

Source of the interface: transformers' documentation, "Attention Interface".
"""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import UnsupportedModel
from penstock.model.config import TransformersConfig
from penstock.prepare.by_transformers import without_instructions
from penstock_worker.by_transformers.paged import IMPLEMENTATION
from penstock_worker.forward.interface import Unable
from penstock_worker.machine.torch_import import complete_torch

MOST_TOLD = 300
"""Characters of another library's message that an error repeats."""


def library() -> Any:
    """The transformers package, with all of torch. Raises Unable if it isn't installed."""
    complete_torch()
    try:
        import transformers
    except ImportError as error:
        raise Unable(f"it needs the transformers package: {error}") from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def model_class(described: TransformersConfig, *, headless: bool = False) -> Any:
    """The class of transformers' that computes the model; headless: its layers alone.

    Raises UnsupportedModel for one that isn't a decoder with attention through the interface, and
    Unable without transformers.
    """
    found = _listed(described, headless)
    known = f"{described.architecture} of transformers {library().__version__}"
    if not getattr(found, "_supports_attention_backend", False):
        raise UnsupportedModel(f"{known} computes its attention itself, not through an interface")
    if getattr(found, "_is_stateful", False):
        raise UnsupportedModel(f"{known} has recurrent layers, which only a family can describe")
    return found


def _listed(described: TransformersConfig, headless: bool) -> Any:
    transformers = library()
    from transformers.models.auto import modeling_auto as auto

    kind = str(json.loads(described.settings).get("model_type"))
    decoders = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if kind not in decoders:
        raise UnsupportedModel(
            f"transformers {transformers.__version__} has no decoder for model_type {kind!r} "
            f"({described.architecture})"
        )
    names = auto.MODEL_MAPPING_NAMES if headless else decoders
    name = names.get(kind)
    name = name[0] if isinstance(name, tuple) else name
    if not headless and name != described.architecture:
        raise UnsupportedModel(
            f"{described.architecture} is not what transformers has for model_type {kind!r}; "
            f"{name} is"
        )
    return getattr(transformers, str(name))


def library_config(described: TransformersConfig) -> Any:
    """The model's settings as transformers' own configuration. Raises UnsupportedModel for what
    its class refuses, and for parts that aren't a decoder's."""
    library()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    settings = without_instructions(json.loads(described.settings))
    kind = settings.pop("model_type")
    try:
        config = CONFIG_MAPPING[kind].from_dict(settings)
    except Exception as error:  # whatever a stranger's settings set off
        raise UnsupportedModel(
            f"transformers rejects the settings of {described.architecture}: "
            f"{type(error).__name__}: {str(error)[:MOST_TOLD]}"
        ) from error
    config.use_cache = False
    config._attn_implementation = IMPLEMENTATION
    config._experts_implementation = "eager"
    return config


def check_positions(model: Any, positions: int) -> None:
    """Raises UnsupportedModel for rotary positions that would change with a step's longest
    sequence. `positions`: of the longest that is served; short ones leave them as they are."""
    for name, module in model.named_modules():
        kinds = getattr(module, "rope_type", None)
        by_layer = kinds if isinstance(kinds, dict) else {None: kinds}
        for layer, kind in by_layer.items():
            limit = _unchanged_up_to(module, layer, kind)
            if limit is not None and positions > limit:
                raise UnsupportedModel(
                    f"{name}: behind {limit} tokens, rotary positions of type {kind!r} change with "
                    "a step's longest sequence in transformers' code; with --max-model-len "
                    f"{limit} or less they are served"
                )


def _unchanged_up_to(module: Any, layer: str | None, kind: object) -> int | None:
    """Tokens of a sequence that leaves the frequencies alone; None: all do. Source: transformers'
    modeling_rope_utils."""
    if isinstance(kind, str) and "dynamic" in kind:
        return int(module.max_seq_len_cached)
    if kind == "longrope":
        stated = module.config.rope_parameters
        stated = stated if layer is None else stated[layer]
        return int(stated["original_max_position_embeddings"])
    return None
