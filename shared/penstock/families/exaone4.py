"""EXAONE 4: norms after attention and feed-forward only, queries and keys normalised head by head;
in the larger release three of four layers in a window, and the fourth without positions.

Source: LG AI Research, "EXAONE 4.0", 2025.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.olmo2 import NAMES
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, LayerSpec, NormSpec


def _usual_kinds(window: int | None, count: int) -> list[str]:
    return [hub.FULL] * count if window is None else hub.every_nth_full(4, count)


def _layers(kinds: list[str], window: int | None) -> tuple[LayerSpec, ...]:
    """Where some layers slide, the others have no positions."""
    layers = []
    for kind in kinds:
        slides = kind == hub.SLIDING
        attention = AttentionSpec(
            window=window if slides else None,
            rope=0 if slides or window is None else None,
            norm="head",
        )
        layers.append(LayerSpec(attention=attention, order="post"))
    return hub.shared(layers)


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields)
    count = sizes["num_layers"]
    window = hub.window(fields) if "sliding_window" in fields else None
    fields.ignore("sliding_window_pattern")  # layer_types says it too
    kinds = hub.layer_kinds(fields, count, _usual_kinds(window, count))
    return ModelConfig(
        architecture="exaone4",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=_layers(kinds, window),
    )


def _gguf_exaone4(model: GGUFMetadata) -> ModelConfig:
    sizes, window = model.sizes(), model.window()
    count = sizes["num_layers"]
    kinds = _usual_kinds(window, count)
    if window is not None and "attention.sliding_window_pattern" in model.keys:
        kinds = model.layer_kinds()
    return ModelConfig(
        architecture="exaone4",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=_layers(kinds, window),
    )


EXAONE4 = Family(
    "exaone4",
    ("Exaone4ForCausalLM",),
    "EXAONE 4",
    _hub,
    hub_names=NAMES,
    gguf="exaone4",
    read_gguf=_gguf_exaone4,
)
