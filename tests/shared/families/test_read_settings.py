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
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from penstock.errors import UnsupportedModel
from penstock.families.family import TowerFamily
from penstock.families.served import AUDIO_CLASSES, ENCODER_TYPES, HUB_CLASSES
from penstock.families.vision.reading import HARMLESS as HARMLESS_IN_TOWERS
from penstock.families.vision.served import VISION_CLASSES
from penstock.formats.fields import Fields
from penstock.prepare.hub_config import HARMLESS, OF_TOKENS, read_config
from penstock.prepare.hub_encoder_config import HARMLESS_OF_ENCODERS, read_encoder_config

NEEDED = {"num_experts_per_tok": 2, "n_routed_experts": 64, "head_dim": 128}
"""What some classes of configurations have no usable default for."""
UNLIKELY = {
    "ApertusForCausalLM": ("rope_parameters",),
    "CwmForCausalLM": ("rope_parameters",),
    "GptOssForCausalLM": ("rope_parameters",),
    "Ministral3ForCausalLM": ("rope_parameters",),
}
"""Classes whose default is a stretched rotation, and every file of which says by how much."""
SAID: dict[str, dict[str, Any]] = {
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
}
"""What all releases of an encoder say that its class of configurations doesn't."""
LLAVA = "LlavaForConditionalGeneration"
TOWERS: list[tuple[str, TowerFamily]] = [
    (name, family)
    for name, family in (*VISION_CLASSES.items(), *AUDIO_CLASSES.items())
    if hasattr(transformers, name)
    and name not in ("Qwen3OmniMoeForConditionalGeneration", "Qwen2_5OmniForConditionalGeneration")
]
"""Classes that only makers' own code has are left out, and those whose files are read as that of
what listens and writes in them."""
each_tower = pytest.mark.parametrize(
    ("name", "towered"), TOWERS, ids=[f"{name}-{family.PART}" for name, family in TOWERS]
)
BY_TIME = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
HALF_BY_TIME = BY_TIME | {"mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}
FITTING: dict[str, dict[str, Any]] = {
    "JanusForConditionalGeneration": {"vision_config": {"projection_dim": 4096}},
    "Idefics3ForConditionalGeneration": {"vision_config": {"image_size": 364, "patch_size": 14}},
    "SmolVLMForConditionalGeneration": {"vision_config": {"image_size": 512, "patch_size": 16}},
    "Qwen2VLForConditionalGeneration": {
        "vision_config": {"hidden_size": 8192},
        "text_config": {"rope_parameters": BY_TIME},
    },
    "Qwen2_5_VLForConditionalGeneration": {
        "vision_config": {"out_hidden_size": 8192},
        "text_config": {"rope_parameters": BY_TIME},
    },
    "Exaone4_5_ForConditionalGeneration": {"vision_config": {"out_hidden_size": 4096}},
    "Qwen2_5OmniThinkerForConditionalGeneration": {"text_config": {"rope_parameters": BY_TIME}},
    "Qwen3VLForConditionalGeneration": {"vision_config": {"out_hidden_size": 4096}},
    "Qwen3VLMoeForConditionalGeneration": {"vision_config": {"out_hidden_size": 2048}},
    "Qwen3_5ForConditionalGeneration": {"vision_config": {"out_hidden_size": 4096}},
    "Qwen3_5MoeForConditionalGeneration": {"vision_config": {"out_hidden_size": 2048}},
    "Glm4vForConditionalGeneration": {"text_config": {"rope_parameters": HALF_BY_TIME}},
    "Glm4vMoeForConditionalGeneration": {
        "text_config": {"rope_parameters": HALF_BY_TIME, "head_dim": 128}
    },
    "Glm46VForConditionalGeneration": {"text_config": {"rope_parameters": HALF_BY_TIME}},
    "DeepseekOcr2ForConditionalGeneration": {
        "vision_config": {"encoder_config": {"hidden_size": 896, "num_attention_heads": 32}},
        "text_config": {"num_experts_per_tok": 6, "mlp_layer_types": ["dense"] + ["sparse"] * 31},
    },
    "GlmOcrForConditionalGeneration": {"vision_config": {"out_hidden_size": 1024}},
    "Granite4VisionForConditionalGeneration": {
        "text_config": {"model_type": "granite4_vision_text"},
        "image_grid_pinpoints": [[224, 448]],
        "downsample_rate": "1/2",
        "deepstack_layer_map": [[-1, 0]],
        "vision_feature_select_strategy": "full",
    },
    "AyaVisionForConditionalGeneration": {
        "vision_config": {"num_attention_heads": 16, "image_size": 364}
    },
    "Qwen3OmniMoeThinkerForConditionalGeneration": {
        "vision_config": {"out_hidden_size": 2048},
        "audio_config": {"output_dim": 2048},
        "text_config": {"num_attention_heads": 16},
    },
    "Qwen3ASRForConditionalGeneration": {"audio_config": {"output_dim": 2048}},
    "GraniteSpeechForConditionalGeneration": {"projector_config": {"encoder_hidden_size": 1024}},
    "Gemma3ForConditionalGeneration": {"vision_config": {"image_size": 896, "patch_size": 14}},
    "Llama4ForConditionalGeneration": {
        "vision_config": {
            "intermediate_size": 3072,
            "vision_output_dim": 4096,
            "projector_output_dim": 4096,
            "projector_input_dim": 4096,
        }
    },
}
"""Settings of classes whose two halves don't fit together by default."""
OF_TRANSFORMERS = [name for name in HUB_CLASSES if hasattr(transformers, name)]
"""Classes of decoders; of the others, makers' own code is what reads their files."""
TIED = "tie_word_embeddings"
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


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
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


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_what_a_file_leaves_out_is_transformers_default(name: str) -> None:
    """Each setting in turn: it is missed, or read as from a file that transformers completes."""
    config = getattr(transformers, name).config_class
    if "text_config" in (getattr(config, "sub_configs", None) or {}):
        pytest.skip("what stands behind its tower is another family's")
    values = {key: value for key, value in config().to_dict().items() if value is not None}
    values = {"architectures": [name], "num_experts_per_tok": 2} | values
    if name == "Glm4MoeForCausalLM":
        values["head_dim"] = 128
    if name == "Dots1ForCausalLM":
        values["n_routed_experts"] = 64
    if name == "DbrxForCausalLM":
        values["ffn_config"] = {}  # the class refuses what it writes
    if name == "HunYuanMoEV1ForCausalLM":
        values["num_experts_per_tok"] = values["moe_topk"]  # another name of it
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
    fields = Fields({**config(**SAID.get(kind, {})).to_dict(), "model_type": kind}, kind)
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


def usual(name: str) -> Any:
    """transformers' defaults for a class with a tower, which Gemma 4's leave out."""
    kind = getattr(transformers, name).config_class
    towers: dict[str, Any] = {}
    if name.startswith("Gemma4"):
        towers = {family.SECTION: {} for known, family in TOWERS if known == name}
    return kind(**towers)


def with_tower(name: str) -> dict[str, Any]:
    """A config.json as transformers' class would write it, of halves that fit together."""
    values = {key: value for key, value in usual(name).to_dict().items() if value is not None}
    for section, settings in FITTING.get(name, {}).items():
        values[section] = fitted(values.get(section), settings)
    return values | {"architectures": [name]}


def fitted(usual: Any, settings: Any) -> Any:
    """The settings among the usual ones, also within sections of a section."""
    if not isinstance(settings, dict):
        return settings
    inner = {key: fitted(usual[key], settings[key]) for key in within(settings) if key in usual}
    found: dict[str, Any] = usual | settings | inner
    return found


def asked_of(fields: Fields, towered: TowerFamily) -> tuple[frozenset[str], frozenset[str]]:
    """What our reader asks of config.json beside its sections, and of the tower's."""
    tower = fields.section(towered.SECTION)
    text = read_config(Fields(fields.values, fields.where), language_model_only=True)
    half, section = towered.text_half(fields)
    half.family.read_hub(section)  # its settings may stand beside the tower's section
    inner = {key: Fields(tower.values[key], key) for key in within(tower.values)}
    plain = tower.section
    # Sections within are ones that note what is asked of them, too.
    tower.section = lambda key: inner[key] if key in inner else plain(key)  # type: ignore[method-assign]
    towered.read(fields, tower, text)
    asked = tower._asked.union(inner, *(each._asked for each in inner.values()))
    return frozenset(fields._asked), frozenset(asked)


def within(section: dict[str, Any]) -> list[str]:
    """Sections of a tower's own."""
    return [key for key, value in section.items() if key.endswith("_config") and value]


@each_tower
def test_what_towers_read(name: str, towered: TowerFamily) -> None:
    """Gemma 4 12B has no tower, and Gemma 3n's is timm's, which no setting describes."""
    model = getattr(transformers, name)
    whole, tower = asked_of(Fields(with_tower(name), name), towered)
    section = getattr(usual(name), towered.SECTION)
    config = type(section)
    modules = {config.__module__, config.__module__.replace("configuration_", "modeling_")}
    found = {each for module in modules for each in names_read(importlib.import_module(module))}
    kinds = [config, *(type(getattr(section, part)) for part in within(section.to_dict()))]
    of_timm = name.startswith("Gemma3n") and towered.PART == "vision"
    every = [each for kind in kinds for each in kind.__mro__]
    declared = {each for kind in every for each in getattr(kind, "__annotations__", {})}
    read = (declared & (found | names_read(importlib.import_module(model.__module__)))) - INTERNAL
    assert len(read) > (1 if name.startswith("Gemma4Unified") else 3 if of_timm else 8)
    assert read - tower - set(config.attribute_map) <= HARMLESS | HARMLESS_IN_TOWERS
    alike = [family for known, family in TOWERS if known == name]
    beside = read_by_transformers(model, model.config_class) - {TIED}
    known = HARMLESS.union(*(family.harmless | {family.SECTION} for family in alike))
    assert not [key for key in beside - whole - known if not key.endswith(OF_TOKENS)]


@each_tower
def test_what_a_tower_leaves_out_is_transformers_default(name: str, towered: TowerFamily) -> None:
    """But for tied weights: whether the files have a head is seen in them."""
    kind = getattr(transformers, name).config_class
    values, compared = with_tower(name), 0
    tower = values[towered.SECTION]
    settings: list[tuple[str, ...]] = [(towered.SECTION, key) for key in tower]
    settings += [(towered.SECTION, part, key) for part in within(tower) for key in tower[part]]
    settings += [(key,) for key in values if key not in (towered.SECTION, "text_config")]
    for path in settings:
        if path[-1] in ("model_type", "architectures", TIED):
            continue
        if path in (("vision_config",), ("audio_config",)):  # the files have no such tower then
            continue
        file = without(values, *path)
        try:
            completed = {**kind.from_dict(dict(file)).to_dict(), "architectures": [name]}
        except StrictDataclassError:  # Its default doesn't fit the others'.
            continue
        found = []
        for each in (file, completed):
            try:
                found.append(read_config(Fields(each, name)))
            except UnsupportedModel:  # It has to be there, or its default fits no other half.
                continue
        if len(found) == 2:
            assert found[0] == found[1], path
            compared += 1
    assert compared > 20


def without(values: dict[str, Any], key: str, *inner: str) -> dict[str, Any]:
    """Leaves out what stands at a path of keys."""
    if inner:
        return values | {key: without(values[key], *inner)}
    return {other: value for other, value in values.items() if other != key}


@pytest.mark.parametrize("kind", [kind for kind, each in ENCODER_TYPES.items() if each.read_halves])
@pytest.mark.parametrize("half", ["text_config", "vision_config"])
def test_what_halves_of_encoders_read(kind: str, half: str) -> None:
    read_halves, config = ENCODER_TYPES[kind].read_halves, CONFIG_MAPPING[kind]
    assert read_halves is not None
    fields = Fields({**config(**SAID.get(kind, {})).to_dict(), "model_type": kind}, kind)
    halves = {name: fields.section(name) for name in ("text_config", "vision_config")}
    read_halves(fields, halves["text_config"], halves["vision_config"])
    read = read_by_transformers(MODEL_MAPPING[config], type(getattr(config(), half)))
    assert len(read) > 8
    known = HARMLESS | HARMLESS_OF_ENCODERS | HARMLESS_IN_TOWERS
    assert read - halves[half]._asked <= known
