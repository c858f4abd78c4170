"""Models that see or hear with random weights (load_format dummy), for which no file is read."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.media_facts import MediaKind, Preparation
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.hub_config import read_config
from penstock.protocol.from_worker import MediaReady
from penstock.protocol.to_worker import Plan
from penstock_worker.loading.load import load
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.media.hearing import AudioModel, open_audio_tower
from penstock_worker.media.interface import MEL
from penstock_worker.vision.vision_model import VisionModel, open_tower
from tests.worker.audio import hearing_cases
from tests.worker.audio.hearing_models import Heard, heard
from tests.worker.media_prompts import media_prompt
from tests.worker.vision import vision_cases
from tests.worker.vision.documents import with_few_queries
from tests.worker.vision.picture_runners import message_of
from tests.worker.vision.pictures import Prepared, picture, words
from tests.worker.vision.test_vision_bits import new, work
from tests.worker.vision.test_vision_loading import setup
from tests.worker.vision.vision_cases import facts_of, manifest

NOWHERE = WeightFiles(format="safetensors", files=("/nowhere",), dtype="float32")
SEEING = (
    "llava",
    "idefics3",
    "qwen2.5-vl",
    "qwen3-vl",
    "llama4",
    "gemma3",
    "gemma3n",
    "gemma4-12b",
    "gemma4-clipped-with-inputs-of-layers",
    "granite4-vision",
    "minicpm-v",
    "minimax-m3",
    "step-3.7",
    "deepseek-vl-hybrid",
)
HEARING = ("gemma4", "granite-speech", "qwen2-audio", "qwen3-asr")


def config_of(case: vision_cases.Case | hearing_cases.HearingCase) -> ModelConfig:
    """What is read of the case's config.json, without weights."""
    made = case.config().to_dict()
    named = getattr(case, "stands_for", "") or f"{case.family}ForConditionalGeneration"
    return with_few_queries(read_config(Fields(made | {"architectures": [named]}, case.family)))


@pytest.mark.parametrize("name", SEEING)
def test_what_sees_keeps_numbers_in_range(name: str) -> None:
    case = vision_cases.CASES[name]
    config = config_of(case)
    tower = VisionModel(config, open_tower(NOWHERE, torch.float32, load_format="dummy"))
    shown = picture(case.preparation, 2, 1)
    check(tower.encode(tower.read(shown.inputs)), shown.item.rows)


@pytest.mark.parametrize("name", HEARING)
def test_what_hears_keeps_numbers_in_range(name: str) -> None:
    config = config_of(hearing_cases.CASES[name])
    tower = AudioModel(config, open_audio_tower(NOWHERE, torch.float32, load_format="dummy"))
    sound = heard(name, 0.31, 1)
    check(tower.encode({MEL: sound.mel}), sound.item.rows)


def check(encoded: torch.Tensor, rows: int) -> None:
    assert len(encoded) == rows
    assert encoded.isfinite().all()
    assert 1e-3 < encoded.std() < 1e3
    assert not torch.equal(encoded, encoded[:1].expand_as(encoded)), "rows differ"


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_a_request_is_served(kind: MediaKind, tmp_path: Path) -> None:
    item: Prepared | Heard
    preparation: Preparation
    if kind == "image":
        seeing = vision_cases.CASES["llava"]
        config, preparation = config_of(seeing), seeing.preparation
        item = picture(seeing.preparation, 1, 1)
    else:
        hearing = hearing_cases.CASES["qwen2-audio"]
        config, preparation = config_of(hearing), hearing.mel
        item = heard("qwen2-audio", 0.31, 1)
    manifest(config, NOWHERE, {kind: facts_of(preparation)}, tmp_path)
    loaded = load(setup(tmp_path, load_format="dummy"))
    path, answers = tmp_path / item.item.name, SimpleQueue[Any]()
    path.write_bytes(item.content)
    loaded.runner.feature(MediaEncodings).hear(message_of(item.item, str(path)), (), answers.put)
    assert isinstance(answers.get(timeout=60), MediaReady)
    tokens, media = media_prompt([words(5, 1), item])
    assert media is not None
    blocks = list(range(-(-len(tokens) // 16)))
    plan = Plan(
        1,
        0,
        [],
        [new(0, tokens, media, blocks)],
        [work(0, 0, tokens)],
        encode=[item.item.name],
    )
    (result,) = loaded.runner.execute(plan).slots
    assert result.error is None
    assert result.token is not None
    loaded.runner.close()
