"""config.json of releases, read by this project and by transformers.

`configs.json` has one release in a line; lists of modules that stay unquantised, and settings of
single layers' quantisation, are cut after twelve. They come from other projects' test data and from
copies of releases: those named `copy/…` may be shortened, those named `mirror/…` are people's own
models or copies that don't say of what.
"""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.prepare.hub_config import read_config
from penstock.prepare.hub_encoder_config import is_encoder, read_encoder_config

RELEASES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "configs.json").read_text(encoding="utf-8")
)
NOT_SERVED = {
    "copy/clip_vision_model",
    "copy/deepseek_vl2_tiny",
    "copy/internlm2_reward",
    "copy/llava_v1.5_7b",
    "copy/phi3small",
    "moonshotai/Kimi-K3",
}
"""Releases of architectures that no family describes."""
READ = sorted(RELEASES.keys() - NOT_SERVED)
SHORTENED = {"copy/dbrx_132b"}
"""Releases whose copy transformers' own class refuses: its ffn_act_fn is a text."""
KNOWN = [
    name
    for name in READ
    if RELEASES[name]["config"].get("model_type") in CONFIG_MAPPING and name not in SHORTENED
]
"""Releases that transformers has a class for."""


def ours(values: dict[str, Any], where: str = "config.json") -> ModelConfig | EncoderConfig:
    fields = Fields(values, where)
    return read_encoder_config(fields) if is_encoder(fields) else read_config(fields)


def theirs(values: dict[str, Any]) -> PretrainedConfig:
    kind = type(AutoConfig.for_model(values["model_type"]))
    if values["model_type"] == "step3p7" and "text_config" not in values:
        values = {"text_config": values}  # Its class knows the decoder's settings there alone.
    return kind.from_dict(copy.deepcopy(values))  # It changes what it is given.


@cache
def our_reading(name: str) -> ModelConfig | EncoderConfig:
    return ours(RELEASES[name]["config"], name)


@cache
def their_reading(name: str) -> PretrainedConfig:
    return theirs(RELEASES[name]["config"])


def their_decoder(name: str) -> Any:
    """What transformers reads of the text half, or of the model."""
    text = their_reading(name).get_text_config()
    text.allow_global_per_layer_attribute_access = True
    return text
