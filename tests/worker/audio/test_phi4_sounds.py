"""Phi-4-multimodal's hearing: sounds beside pictures, of more than one block, and from files in its
makers' names."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Phi4MultimodalConfig

from penstock.media.prepared import write
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.media.hearing import BESIDE, AudioModel, Hearing, UnfitSound, open_audio_tower
from penstock_worker.media.interface import MEL
from penstock_worker.media.loading import BothSenses
from penstock_worker.vision.sight import Sight
from tests.worker.audio.hearing_models import Heard, both, heard
from tests.worker.audio.phi4_hearing import SETTINGS, features_of, make, rows_of
from tests.worker.driver import Driver, Job, LogitsOf
from tests.worker.media.both_senses import HEARD, token_of
from tests.worker.media_prompts import media_prompt
from tests.worker.models.parity import RELATIVE_TOLERANCE
from tests.worker.vision.picture_runners import backend_of, load, runner_of
from tests.worker.vision.pictures import picture, pixels_of, words
from tests.worker.vision.vision_cases import CASES, PLACEHOLDER, opened, saved

CASE = "phi4-multimodal"
MAKERS = {
    ".gate_up_proj.": ".net.0.linear.",
    ".down_proj.": ".net.2.",
    "self_attn.q_proj.": "self_attn.linear_q.",
    "self_attn.k_proj.": "self_attn.linear_k.",
    "self_attn.v_proj.": "self_attn.linear_v.",
    "self_attn.o_proj.": "self_attn.linear_out.",
    "up_proj_for_speech.": "audio_projection.speech.0.",
    "down_proj_for_speech.": "audio_projection.speech.2.",
    "up_proj_for_vision_speech.": "audio_projection.vision.0.",
    "down_proj_for_vision_speech.": "audio_projection.vision.2.",
}


def beside(sound: Heard) -> dict[str, np.ndarray]:
    """The tensors of a sound in a prompt with pictures."""
    return {MEL: sound.mel, BESIDE: np.ones(1, np.int32)}


def check(found: torch.Tensor, true: torch.Tensor) -> None:
    assert found.shape == true.shape
    assert bool(((found - true).abs() <= RELATIVE_TOLERANCE * true.abs().max()).all())


def test_a_sound_beside_pictures() -> None:
    theirs, ours = both(CASE)
    sound = heard(CASE, 0.7, 1)
    with torch.inference_mode():
        found = ours.tower.encode(beside(sound))
        check(found, rows_of(theirs, features_of(sound.samples), "vision"))
    assert not torch.allclose(found, ours.tower.encode({MEL: sound.mel}))
    for wrong in (
        {MEL: sound.mel, "beside": np.ones(1, np.int32)},
        {BESIDE: beside(sound)[BESIDE]},
    ):
        with pytest.raises(UnfitSound):
            ours.tower.read(wrong)


def test_a_sound_of_more_than_one_block() -> None:
    """Zeros behind the last vectors are heard, too, as in transformers."""
    theirs, ours = both(CASE)
    sound = heard(CASE, 45.1, 1)
    assert 500 < sound.item.rows < 1000
    with torch.inference_mode():
        check(ours.tower.encode({MEL: sound.mel}), rows_of(theirs, features_of(sound.samples)))


def test_what_reduces_windows_does_so_in_parts() -> None:
    """A part has 64 vectors: one more is what it would be in one part."""
    theirs, ours = both(CASE)
    for seconds in (5.2, 5.16, 10.3):
        sound = heard(CASE, seconds, 2)
        assert sound.item.rows > 64
        with torch.inference_mode():
            check(ours.tower.encode({MEL: sound.mel}), rows_of(theirs, features_of(sound.samples)))


def test_files_in_the_makers_names(tmp_path: Path) -> None:
    _, ours = both(CASE)
    made = {}
    for name, tensor in load_file(ours.files.files[0]).items():
        for theirs, own in MAKERS.items() if "audio_embed" in name else ():
            name = name.replace(theirs, own)
        made[name] = tensor
    assert sum("linear_q" in name for name in made) == 4
    save_file(made, tmp_path / "model.safetensors")
    files = msgspec.structs.replace(ours.files, files=(str(tmp_path / "model.safetensors"),))
    read = AudioModel(ours.config, open_audio_tower(files, torch.float32))
    sound = heard(CASE, 0.6, 3)
    for tensors in ({MEL: sound.mel}, beside(sound)):
        assert torch.equal(read.encode(tensors), ours.tower.encode(tensors))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_prompt_with_a_picture_and_a_sound(backend: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    preparation = CASES[CASE].preparation
    settings = SETTINGS | {
        "vision_config": SETTINGS["vision_config"] | {"image_token_id": PLACEHOLDER},
        "audio_config": SETTINGS["audio_config"] | {"audio_token_id": HEARD},
    }
    config = Phi4MultimodalConfig(**settings)
    config._attn_implementation = "eager"
    theirs = make(config).eval()
    with TemporaryDirectory() as folder:
        ours = opened(*saved(theirs, Path(folder)))
        hears = AudioModel(ours.config, open_audio_tower(ours.files, torch.float32))
        shown, alone = picture(preparation, 2, 1), heard(CASE, 0.5, 2)
        content = write(beside(alone))
        digest = hashlib.sha256(content).hexdigest()
        item = msgspec.structs.replace(alone.item, name=digest, size=len(content), digest=digest)
        sound = replace(alone, content=content, item=item)
        parts = [words(5, 1), sound, words(3, 2), shown, words(4, 4)]
        tokens, media = media_prompt(parts, token_of)
        seen = LogitsOf()
        runner = runner_of(ours, preparation, observer=seen, cpu=backend_of(ours, backend))
        sees = Sight(ours.tower, preparation, lambda: None)
        encodings = runner.feature(MediaEncodings)
        encodings.see_with(BothSenses(sees, Hearing(hears, lambda: None)))
        load(runner, tmp_path, shown, sound)
        driver = Driver(runner, num_blocks=128, slots=8, budget=37)
        driver.encode = [shown.item.name, sound.item.name]
        job = Job(tokens, 1, media=media)
        slot = None
        while not job.done:
            driver._step([job])
            slot = job.slot if slot is None else slot
    assert job.error is None
    assert slot is not None
    sounds = {
        "audio_input_features": features_of(sound.samples),
        "audio_embed_sizes": torch.tensor([sound.item.rows]),
    }
    with torch.inference_mode():
        true = theirs(torch.tensor([tokens]), **pixels_of(theirs, [shown]), **sounds).logits[0]
    found = seen.of(slot)
    allowed = RELATIVE_TOLERANCE * true.abs().amax(-1)
    assert bool(((found - true[: len(found)]).abs().amax(-1) <= allowed[: len(found)]).all())
