"""config.json of Janus's and DeepSeek-VL's makers: Janus 1.3B's as it was released; those of
Janus-Pro 7B and DeepSeek-VL 1.3B are written from memory."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.forms.fixed import FixedImages
from penstock.model.config import ModelConfig
from penstock.model.projector_spec import MLPProjector
from penstock.model.tower_spec import LearnedPositions
from penstock.prepare.hub_config import read_config
from penstock.prepare.media import read_media
from tests.shared.media.janus_pictures import MARK, MakersPictures
from tests.shared.media.media_tokenizer import JANUS as AROUND
from tests.shared.media.media_tokenizer import tokenizer
from tests.shared.releases.reading import RELEASES

JANUS: dict[str, Any] = RELEASES["copy/janus_1.3b"]["config"]
PRO_7B: dict[str, Any] = copy.deepcopy(JANUS) | {
    "language_config": {
        "max_position_embeddings": 16_384,
        "model_type": "llama",
        "num_hidden_layers": 30,
        "torch_dtype": "bfloat16",
        "vocab_size": 102_400,
    }
}
PRO_7B["aligner_config"]["params"]["n_embed"] = 4096
DEEPSEEK: dict[str, Any] = {
    key: value for key, value in JANUS.items() if not key.startswith("gen_")
} | {"architectures": ["MultiModalityCausalLM"]}


def read(values: dict[str, Any], **changes: Any) -> ModelConfig:
    """changes: of nested values, `vision_config__params__image_size=224`."""
    made = copy.deepcopy(values)
    for path, value in changes.items():
        *sections, key = path.split("__")
        inner = made
        for each in sections:
            inner = inner[each]
        inner[key] = value
    return read_config(Fields(made, "config.json"))


def test_towers_of_janus_and_deepseek_vl_are_read() -> None:
    janus, pro, deepseek = read(JANUS), read(PRO_7B), read(DEEPSEEK)
    assert (janus.architecture, janus.num_layers, janus.hidden_size) == ("llama", 24, 2048)
    assert (janus.tie_word_embeddings, janus.max_position) == (False, 16_384)
    assert (pro.num_layers, pro.hidden_size, pro.intermediate_size) == (30, 4096, 11_008)
    vision = janus.vision
    assert vision is not None
    tower = vision.tower
    assert (tower.hidden_size, tower.intermediate_size, tower.num_layers) == (1024, 4096, 24)
    assert (tower.num_heads, tower.patch, tower.unread_layers) == (16, 16, 0)
    assert (tower.activation, tower.last_norm, tower.class_token) == ("gelu", True, False)
    assert tower.positions == LearnedPositions(side=24)
    assert (vision.projector, vision.image_size) == (MLPProjector(bias=True), 384)
    assert vision == pro.vision == deepseek.vision


def test_other_towers_and_layers() -> None:
    vision = read(JANUS, vision_config__params__select_layer=-2).vision
    assert vision is not None
    assert (vision.tower.num_layers, vision.tower.last_norm) == (23, True)
    large = read(
        JANUS,
        vision_config__params__model_name="siglip_so400m_patch14_384",
        aligner_config__params__input_dim=1152,
    ).vision
    assert large is not None
    assert (large.tower.intermediate_size, large.tower.num_layers) == (4304, 27)
    assert large.tower.positions == LearnedPositions(side=27)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vision_config__cls": "HybridVisionTower"}, "DeepseekVLHybridForConditionalGeneration"),
        ({"vision_config__cls": "RadioVisionTower"}, "CLIPVisionTower is needed"),
        ({"vision_config": {}}, "CLIPVisionTower is needed"),
        ({"vision_config__params__model_name": "sam_b_downsample"}, "siglip_large_patch16_384"),
        ({"vision_config__params__select_layer": -30}, "select_layer"),
        ({"vision_config__params__select_layers": [1, 2]}, "select_layers"),
        ({"vision_config__params__pixel_mean": [0.5, 0.5, 0.5]}, "pixel_mean"),
        ({"vision_config__params__image_size": 10}, "0 patches of 16"),
        ({"vision_config__params__mlp_ratio": 1e9}, "mlp_ratio"),
        ({"aligner_config__params__projector_type": "identity"}, "mlp_gelu is needed"),
        ({"aligner_config__params__depth": 3}, "depth"),
        ({"aligner_config__params__input_dim": 768}, "input_dim is 768; 1024 is needed"),
        ({"aligner_config__params__n_embed": 4096}, "n_embed"),
        ({"language_config__model_type": "mamba"}, "llama are"),
        ({"model_type": "multi"}, "architectures is missing"),
    ],
)
def test_what_the_makers_code_could_do_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(JANUS, **changes)


@pytest.mark.parametrize("values", [JANUS, DEEPSEEK], ids=["janus", "deepseek-vl"])
def test_pictures_of_janus_are_prepared_as_its_files_say(
    values: dict[str, Any], tmp_path: Path
) -> None:
    """Janus has two tokens around a picture's embeddings."""
    MakersPictures(384, 16, 14).save_pretrained(tmp_path)
    words = tokenizer(*AROUND, MARK).to_str().encode()
    facts = read_media(tmp_path, Fields(values, "config.json"), words)
    assert facts is not None
    own = facts.kinds["image"]
    assert own.token == own.placeholder == MARK
    assert (own.before, own.behind) == (AROUND if values is JANUS else ("", ""))
    assert isinstance(own.preparation, FixedImages)
    assert (own.preparation.rows, own.preparation.fitted) == (576, 14)
    assert own.preparation.fitted_down


def test_settings_of_janus_that_cant_be_followed_are_refused(tmp_path: Path) -> None:
    MakersPictures(224, 16, 14).save_pretrained(tmp_path)
    words = tokenizer(*AROUND, MARK).to_str().encode()
    with pytest.raises(UnsupportedModel, match=r"image_size is 224; what the vision tower has"):
        read_media(tmp_path, Fields(JANUS, "config.json"), words)
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    settings |= {"image_size": 384, "sharpened": True}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(UnsupportedModel, match="sharpened is not known"):
        read_media(tmp_path, Fields(JANUS, "config.json"), words)
    with pytest.raises(UnsupportedModel, match="lacks the special token <begin_of_image>"):
        read_media(tmp_path, Fields(JANUS, "config.json"), tokenizer(MARK).to_str().encode())
