"""A model that sees and hears: each item is encoded by its own tower, and prompts with both equal
transformers'."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
import torch

from penstock.formats.gguf import GGUFFile
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.gguf_config import read_config
from penstock.prepare.mmproj.reading import read_mmproj
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.media.hearing import AudioModel, Hearing, open_audio_tower
from penstock_worker.media.interface import MEL
from penstock_worker.media.loading import BothSenses
from penstock_worker.media.planning import stand_in_of
from penstock_worker.vision.sight import Sight
from tests.shared.media.media_tokenizer import HEARD, OMNI_2_5, tokenizer
from tests.worker.audio.gemma3n_hearing import one_by_one
from tests.worker.audio.hearing_cases import CASES as HEARING
from tests.worker.audio.hearing_cases import MAGNITUDES
from tests.worker.audio.hearing_models import heard, their_features
from tests.worker.driver import Driver, Job, LogitsOf
from tests.worker.media.both_senses import model, token_of, unified
from tests.worker.media_prompts import media_prompt
from tests.worker.models.parity import RELATIVE_TOLERANCE
from tests.worker.vision.mmproj_writer import write_mmproj, write_text_half
from tests.worker.vision.newer_cases import POOLED
from tests.worker.vision.omni import AROUND
from tests.worker.vision.picture_runners import load, runner_of
from tests.worker.vision.pictures import masks_of, picture, pixels_of, words
from tests.worker.vision.vision_cases import CASES, PLACEHOLDER, make_theirs, opened, saved

SENSES: dict[str, Callable[[], Any]] = {
    "gemma3n": lambda: make_theirs("gemma3n"),
    "gemma4": model,
    "gemma4-12b": unified,
    "qwen3-omni": lambda: make_theirs("qwen3-omni"),
    "qwen2.5-omni": lambda: make_theirs("qwen2.5-omni"),
}


@pytest.mark.parametrize("case", SENSES)
def test_a_prompt_with_a_picture_and_sounds(case: str, tmp_path: Path) -> None:
    theirs = SENSES[case]()
    with TemporaryDirectory() as folder:
        config, files = saved(theirs, Path(folder))
        ours = opened(config, files)
        hears = AudioModel(config, open_audio_tower(files, torch.float32))
    omni = case.endswith("-omni")
    pictures = CASES[case].preparation if case == "gemma3n" or omni else POOLED
    shown, sound = picture(pictures, 2, 1), heard(case, 0.5, 2)
    # Beside a longer one, transformers fills up Qwen3-Omni's with zeros.
    other = heard(case, 0.5 if case == "qwen3-omni" else 0.3, 3)
    parts = [words(5, 1), sound, words(3, 2), shown, words(2, 3), other, words(4, 4)]
    if omni:  # transformers finds media by the tokens before them
        before_picture, before_sound = (
            AROUND[f"{kind}_start_token_id"] for kind in ("vision", "audio")
        )
        parts[0] = [*words(5, 1), before_sound]
        parts[2], parts[4] = [7, 9, before_picture], [AROUND["vision_end_token_id"], before_sound]

    tokens, media = media_prompt(parts, token_of)
    seen = LogitsOf()
    runner = runner_of(ours, pictures, observer=seen)
    encodings = runner.feature(MediaEncodings)
    assert (
        encodings.stand_in == stand_in_of(config) == (0 if case in ("gemma3n", "gemma4") else None)
    )
    sees = Sight(ours.tower, pictures, lambda: None)
    encodings.see_with(BothSenses(sees, Hearing(hears, lambda: None)))
    load(runner, tmp_path, shown, sound, other)
    driver = Driver(runner, num_blocks=128, slots=8, budget=512)
    driver.encode = [each.item.name for each in (shown, sound, other)]
    job = Job(tokens, 1, media=media)
    slot = None
    while not job.done:
        driver._step([job])
        slot = job.slot if slot is None else slot
    assert job.error is None
    assert slot is not None
    given = torch.tensor([tokens])
    also = pixels_of(theirs, [shown]) | their_features(case, [sound, other])
    also["attention_mask"] = torch.ones_like(given)
    if omni:
        also["image_grid_thw"] = torch.from_numpy(shown.inputs["grid_thw"]).long()[None]
    if case == "gemma4-12b":
        also["attention_mask"] = masks_of(theirs, (given == PLACEHOLDER).int())
    sounds: list[torch.Tensor] = []
    if case == "gemma3n":
        sounds = also.pop("input_features")
        also |= {"input_features": torch.zeros(1), "input_features_mask": torch.ones(1).bool()}
    with torch.inference_mode(), one_by_one(theirs.model, sounds) if sounds else nullcontext():
        true = theirs(given, **also).logits[0]
    found = seen.of(slot)
    allowed = RELATIVE_TOLERANCE * true.abs().amax(-1)
    assert bool(((found - true[: len(found)]).abs().amax(-1) <= allowed[: len(found)]).all())


def test_qwen3_omni_sees_and_hears_by_one_mmproj_file(tmp_path: Path) -> None:
    """It encodes what the hub's folder does. Eight blocks see one another, as the releases' do: the
    file doesn't say."""
    theirs = make_theirs("qwen3-omni")
    with TemporaryDirectory() as folder:
        config, files = saved(theirs, Path(folder))
        assert config.audio is not None
        tower = msgspec.structs.replace(config.audio.tower, seen=8)
        config = msgspec.structs.replace(
            config, audio=msgspec.structs.replace(config.audio, tower=tower)
        )
        hub = AudioModel(config, open_audio_tower(files, torch.float32))
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    write_text_half(text, theirs)
    write_mmproj(mmproj, theirs)
    vocabulary = tokenizer(*HEARD).to_str().encode()
    found, media = read_mmproj(mmproj, read_config(GGUFFile(text)), vocabulary, "<|audio_start|>")
    assert found.audio == config.audio
    mel = msgspec.structs.replace(HEARING["qwen3-omni"].mel, seconds=30)
    assert (media.kinds["audio"].preparation, media.kinds["audio"].before) == (mel, "")
    assert set(media.kinds) == {"image", "audio"}
    pair = WeightFiles(format="gguf", files=(str(text),), dtype="F32", mmproj=str(mmproj))
    ours = AudioModel(found, open_audio_tower(pair, torch.float32))
    for seconds in (0.4, 2.3, 9.0):
        given = {MEL: heard("qwen3-omni", seconds, 1).mel}
        with torch.inference_mode():
            assert torch.equal(*(each.encode(given) for each in (ours, hub)))


def test_qwen2_5_omni_sees_and_hears_by_one_mmproj_file(tmp_path: Path) -> None:
    """A block has 200 windows, as the releases' do: the file doesn't say."""
    theirs = make_theirs("qwen2.5-omni")
    with TemporaryDirectory() as folder:
        config, files = saved(theirs, Path(folder))
        assert config.audio is not None
        tower = msgspec.structs.replace(config.audio.tower, block=200, positions=1500)
        config = msgspec.structs.replace(
            config, audio=msgspec.structs.replace(config.audio, tower=tower)
        )
        hub = AudioModel(config, open_audio_tower(files, torch.float32))
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    write_text_half(text, theirs)
    write_mmproj(mmproj, theirs)
    vocabulary = tokenizer(*OMNI_2_5).to_str().encode()
    found, media = read_mmproj(mmproj, read_config(GGUFFile(text)), vocabulary)
    assert found.audio == config.audio
    mel = msgspec.structs.replace(HEARING["qwen2.5-omni"].mel, seconds=300)
    assert media.kinds["audio"].preparation == mel
    assert set(media.kinds) == {"image", "audio"}
    pair = WeightFiles(format="gguf", files=(str(text),), dtype="F32", mmproj=str(mmproj))
    ours = AudioModel(found, open_audio_tower(pair, torch.float32))
    for seconds in (0.4, 1.9):
        given = {MEL: heard("qwen2.5-omni", seconds, 1).mel}
        with torch.inference_mode():
            assert torch.equal(*(each.encode(given) for each in (ours, hub)))


def test_both_of_one_mmproj_file(tmp_path: Path) -> None:
    """They encode what those of the hub's folder do. Vectors attend to twelve, as the releases' do:
    the file doesn't say."""
    theirs = model(attention_chunk_size=12, attention_context_left=13, attention_logit_cap=50.0)
    with TemporaryDirectory() as folder:
        config, files = saved(theirs, Path(folder))
        hub = AudioModel(config, open_audio_tower(files, torch.float32))
        sees = opened(config, files).tower
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    write_text_half(text, theirs)
    write_mmproj(mmproj, theirs)
    vocabulary = tokenizer().to_str().encode()
    found, media = read_mmproj(mmproj, read_config(GGUFFile(text)), vocabulary)
    assert found.audio == config.audio
    assert media.kinds["audio"].preparation == MAGNITUDES
    assert (media.kinds["audio"].before, media.kinds["audio"].behind) == ("<|audio>", "<audio|>")
    assert set(media.kinds) == {"image", "audio", "video"}
    pair = WeightFiles(format="gguf", files=(str(text),), dtype="F32", mmproj=str(mmproj))
    ours = AudioModel(found, open_audio_tower(pair, torch.float32))
    sound, shown = heard("gemma4", 0.7, 1), picture(POOLED, 2, 1).inputs
    with torch.inference_mode():
        assert torch.equal(*(each.encode({MEL: sound.mel}) for each in (ours, hub)))
        tower = opened(found, pair).tower
        assert torch.equal(*(each.encode(each.read(shown)) for each in (tower, sees)))
