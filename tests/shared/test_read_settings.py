"""What transformers' code reads of a config.json, ours reads or refuses."""

from __future__ import annotations

import ast
import importlib
import inspect
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from penstock.errors import UnsupportedModel
from penstock.families import ENCODER_TYPES, HUB_CLASSES
from penstock.formats.fields import Fields
from penstock.prepare.hub_config import (
    HARMLESS,
    HARMLESS_OF_ENCODERS,
    read_config,
    read_encoder_config,
)

NEEDED = {"num_experts_per_tok": 2, "n_routed_experts": 64, "head_dim": 128}
"""What some classes of configurations have no usable default for."""
UNLIKELY = {
    "GptOssForCausalLM": ("rope_parameters",),
    "Ministral3ForCausalLM": ("rope_parameters",),
}
"""Classes whose default is a stretched rotation, and every file of which says by how much."""
LLAVA = "LlavaForConditionalGeneration"
INTERNAL = {"sub_configs", "base_model_tp_plan", "text_config", "attribute_map"}
"""Fields of transformers' classes of configurations that no file has."""


@cache
def names_read(module: ModuleType) -> frozenset[str]:
    """The attributes of configurations that a module of transformers asks for."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if name.endswith("config"):
                found.add(node.attr)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            found |= {str(each.value) for each in node.args if isinstance(each, ast.Constant)}
    return frozenset(found)


def read_by_transformers(model: Any, config: Any) -> set[str]:
    """Settings of the class of configurations that the model's code reads."""
    declared = {name for each in config.__mro__ for name in getattr(each, "__annotations__", {})}
    modules = {model.__module__, config.__module__}
    read = {name for each in modules for name in names_read(importlib.import_module(each))}
    return (declared & read) - INTERNAL


@pytest.mark.parametrize("name", HUB_CLASSES)
def test_what_decoders_read(name: str) -> None:
    family, model = HUB_CLASSES[name], getattr(transformers, name)
    config = model.config_class
    section = (getattr(config, "sub_configs", None) or {}).get("text_config")
    if getattr(section, "model_type", ""):
        config = section
    elif section is not None:
        pytest.skip("what stands behind its tower is another family's")
    values = {key: value for key, value in config().to_dict().items() if value is not None}
    fields = Fields(NEEDED | values, name)
    family.read_hub(fields)
    read = read_by_transformers(model, config)
    assert len(read) > 8
    asked = fields._asked | {ours for ours, own in config.attribute_map.items()}
    assert read - asked - HARMLESS <= family.unserved
    assert not family.unserved & fields._asked


@pytest.mark.parametrize("name", HUB_CLASSES)
def test_what_a_file_leaves_out_is_transformers_default(name: str) -> None:
    """Each setting in turn: it is missed, or read as from a file that transformers completes."""
    config = getattr(transformers, name).config_class
    if "text_config" in (getattr(config, "sub_configs", None) or {}):
        pytest.skip("what stands behind its tower is another family's")
    values = {key: value for key, value in config().to_dict().items() if value is not None}
    values = {"architectures": [name], "num_experts_per_tok": 2} | values
    if name == "Glm4MoeForCausalLM":
        values["head_dim"] = 128
    compared = 0
    for key in values.keys() - {"architectures", "model_type", *UNLIKELY.get(name, ())}:
        less = {other: value for other, value in values.items() if other != key}
        try:
            ours = read_config(Fields(less, name))
        except UnsupportedModel:
            continue  # It has to be there.
        completed = config.from_dict(dict(less)).to_dict()
        assert ours == read_config(Fields(completed, name)), key
        compared += 1
    assert compared > 8


@pytest.mark.parametrize("kind", ENCODER_TYPES)
def test_what_encoders_read(kind: str) -> None:
    family = ENCODER_TYPES[kind]
    if kind not in CONFIG_MAPPING:
        pytest.skip("its makers' own code is what reads it")
    config = CONFIG_MAPPING[kind]
    fields = Fields({**config().to_dict(), "model_type": kind}, kind)
    if family.read_halves is not None or family.both_ways_key:
        pytest.skip("its halves are read from sections; decoders that look both ways are above")
    read_encoder_config(fields)
    read = read_by_transformers(MODEL_MAPPING[config], config)
    assert len(read) > 8
    asked = fields._asked | set(config.attribute_map)
    assert read - asked - HARMLESS - HARMLESS_OF_ENCODERS <= family.unserved


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "OlmoeForCausalLM", "NemotronHForCausalLM"])
def test_only_what_is_read_and_not_served_is_refused(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = getattr(transformers, name).config_class()
    values = {**config.to_dict(), "architectures": [name]}
    served = read_config(Fields(values, name))
    inert = {"attention_bend": 0.5, "sliding_window": 64, "use_sliding_window": True}
    with caplog.at_level("INFO"):
        assert read_config(Fields(values | inert, name)) == served
    (said,) = [line.__dict__ for line in caplog.records if "doesn't read" in line.getMessage()]
    assert all(key in str(said) for key in inert)
    for key in HUB_CLASSES[name].unserved:
        with pytest.raises(UnsupportedModel, match=f"{key} is 7, which is not served"):
            read_config(Fields({**values, key: 7}, name))


def test_towers_settings_that_nothing_reads_are_passed_over() -> None:
    config = transformers.LlavaConfig().to_dict() | {"architectures": [LLAVA]}
    served = read_config(Fields(config, LLAVA))
    tower = config["vision_config"] | {"rotated": True}
    assert read_config(Fields(config | {"vision_config": tower, "glossy": 1}, LLAVA)) == served
