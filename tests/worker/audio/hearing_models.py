"""Tiny models that hear, with random weights: transformers' own, and ours of the same files; and
made-up sounds in prompts for both."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional

from penstock.formats.fields import Fields
from penstock.formats.weight_files import find_safetensors
from penstock.media.log_mel import LOG_MEL
from penstock.media.prepared import write
from penstock.media.spectrogram import spectrogram
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.model.sound_facts import (
    BlockMel,
    EmphasisedMel,
    FrameMel,
    HammingMel,
    PairedMel,
    Waveform,
)
from penstock.prepare.from_hub_folder import tower_of
from penstock.prepare.hub_config import read_config
from penstock.protocol.media import Media, MediaItem
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.forward.cpu.forward import CPUForward
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.media.hearing import AudioModel, Hearing, open_audio_tower
from penstock_worker.media.planning import stand_in_of
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.sampler import choose
from penstock_worker.steps.runner import StepRunner
from penstock_worker.weights.opening import open_weights
from tests.shared.media.sounds import RATE, sound
from tests.worker.audio import gemma3n_hearing, phi4_hearing
from tests.worker.audio.hearing_cases import BINS, CASES
from tests.worker.cpu_model import CPUModel
from tests.worker.driver import Job
from tests.worker.media_prompts import media_prompt
from tests.worker.runners import Observer, host_runner
from tests.worker.vision.vision_cases import PLACEHOLDER, POSITIONS, set_buffers


@dataclass(frozen=True)
class HearingModel:
    """Our model, read from the files that transformers wrote."""

    config: ModelConfig
    decoder: DecoderModel
    tower: AudioModel
    files: WeightFiles


def make_theirs(case: str) -> Any:
    """transformers' model with random weights; biases and norms too, which start at 0 and 1."""
    import transformers

    torch.manual_seed(5)
    config = CASES[case].config()
    # Gemma 4's conformer takes a mask of floats for one of truth values.
    config._attn_implementation = "sdpa" if CASES[case].family == "Gemma4" else "eager"
    made = getattr(transformers, f"{CASES[case].family}ForConditionalGeneration", None)
    if CASES[case].family == "Phi4Multimodal":
        made = phi4_hearing.make
    if CASES[case].family == "Gemma3n":
        made = gemma3n_hearing.make
    model: Any = made(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "embed_positions" in name:
                parameter.normal_(0, 0.3)
            elif "norm" in name:
                parameter.normal_(1, 0.3)
            elif name.endswith("per_dim_scale"):
                parameter.normal_(0, 0.3)
        for name, each in model.named_buffers():
            if name.endswith("running_mean"):
                each.normal_(0, 0.3)
            elif name.endswith("running_var"):
                each.uniform_(0.5, 2.0)
        if CASES[case].family.startswith("Gemma4"):
            set_buffers(model)
        if CASES[case].family == "Gemma3n":
            # An answer has none of the tokens that transformers' towers embed.
            model.get_input_embeddings().weight[PLACEHOLDER:] = 0
    return model


def opened(folder: Path) -> HearingModel:
    path = folder / "config.json"
    stated = Fields(json.loads(path.read_text()), str(path))
    config = read_config(stated)
    files = WeightFiles(
        format="safetensors",
        files=tuple(map(str, find_safetensors(folder))),
        dtype="float32",
        tower=tower_of(stated),
    )
    return HearingModel(
        config,
        DecoderModel(config, open_weights(files, config, torch.float32), POSITIONS),
        AudioModel(config, open_audio_tower(files, torch.float32)),
        files,
    )


@cache
def both(case: str) -> tuple[Any, HearingModel]:
    """Made once for all tests of a file."""
    theirs, folder = make_theirs(case), TemporaryDirectory()
    _FOLDERS.append(folder)
    theirs.save_pretrained(folder.name)
    return theirs, opened(Path(folder.name))


_FOLDERS: list[TemporaryDirectory[str]] = []
"""Folders of the weights that the CPU kernels map, kept until the tests end."""


@dataclass(frozen=True)
class Heard:
    """A sound: its samples, and what the worker gets."""

    samples: np.ndarray
    mel: np.ndarray
    content: bytes
    item: MediaItem

    @property
    def spans(self) -> tuple[int, ...]:
        return (self.item.rows,)


def heard(case: str, seconds: float, seed: int) -> Heard:
    preparation, samples = CASES[case].mel, sound(seconds, seed=seed)
    mel = spectrogram(preparation, samples)
    content = write({LOG_MEL: mel})
    digest = hashlib.sha256(content).hexdigest()
    rows = preparation.embeddings(len(samples))
    item = MediaItem(digest, "audio", rows, len(content), digest)
    return Heard(samples, mel, content, item)


Part = list[int] | Heard


def prompt_of(parts: Sequence[Part]) -> tuple[list[int], Media | None]:
    return media_prompt(parts)


def words(count: int, seed: int) -> list[int]:
    choose_ = random.Random(seed)
    return [choose_.randrange(3, PLACEHOLDER) for _ in range(count)]


def job_of(parts: Sequence[Part], wanted: int) -> Job:
    tokens, media = prompt_of(parts)
    return Job(tokens, wanted, media=media)


def their_features(case: str, sounds: Sequence[Heard]) -> dict[str, Any]:
    """What transformers' processors make of the samples, with the extractor's NumPy path if it has
    one."""
    preparation = CASES[case].mel
    if isinstance(preparation, PairedMel):
        return _of_pairs(sounds)
    if isinstance(preparation, HammingMel):
        return {"input_features": [phi4_hearing.features_of(each.samples) for each in sounds]}
    extractor = CASES[case].extractor
    if isinstance(preparation, BlockMel):
        told = _of_blocks(extractor, sounds)
        if CASES[case].family == "Qwen3OmniMoeThinker":
            told["feature_attention_mask"] = told.pop("input_features_mask")
        return told
    if isinstance(preparation, EmphasisedMel):
        made = [extractor(each.samples, return_tensors="pt") for each in sounds]
        return {"input_features": [each["input_features"] for each in made]}
    if isinstance(preparation, (FrameMel, Waveform)):
        told = extractor([each.samples for each in sounds], return_tensors="pt")
        return {name: told[name] for name in ("input_features", "input_features_mask")}
    features, masks = [], []
    for each in sounds:
        chunks = -(-len(each.samples) // preparation.chunk_samples)
        whole = np.zeros(chunks * preparation.chunk_samples, np.float32)
        whole[: len(each.samples)] = each.samples
        mel = extractor._np_extract_fbank_features(whole[None], "cpu")[0]
        features.append(torch.from_numpy(mel).reshape(BINS, chunks, -1).transpose(0, 1))
        told = extractor(
            each.samples, sampling_rate=RATE, return_attention_mask=True, return_tensors="pt"
        )
        masks.append(told["attention_mask"])
    given: dict[str, Any] = {"input_features": torch.cat(features)}
    if preparation.cut:
        given["feature_attention_mask"] = torch.cat(masks)
    return given


def _of_pairs(sounds: Sequence[Heard]) -> dict[str, Any]:
    """What is ours already: their extractor needs torchaudio, beside which tests/shared/media
    compares ours. Vectors of a sound would see the silence behind it, so each is given alone."""
    pairs = [torch.from_numpy(each.mel[0].T).reshape(-1, 2 * BINS) for each in sounds]
    return {"input_features": [each[None] for each in pairs]}


def _of_blocks(extractor: Any, sounds: Sequence[Heard]) -> dict[str, Any]:
    """Each sound as if it were alone, filled up to the longest."""
    given = {"padding": "longest", "sampling_rate": RATE, "return_attention_mask": True}
    made = [extractor(each.samples, **given) for each in sounds]
    most = max(each["input_features"].shape[-1] for each in made)

    def joined(name: str) -> torch.Tensor:
        return torch.cat(
            [functional.pad(each[name], (0, most - each[name].shape[-1])) for each in made]
        )

    mask = joined("attention_mask")
    return {"input_features": joined("input_features"), "input_features_mask": mask}


def theirs_of(
    case: str, model: Any, parts: Sequence[Part], more: Sequence[int] = ()
) -> torch.Tensor:
    """transformers' logits of the prompt and more tokens, [tokens, vocab]."""
    tokens, _ = prompt_of(parts)
    sounds = [part for part in parts if isinstance(part, Heard)]
    also = their_features(case, sounds) if sounds else {}
    given = torch.tensor([tokens + list(more)])
    if CASES[case].family == "Gemma3n":
        return gemma3n_hearing.logits_of(model, given[0].tolist(), also.get("input_features", []))
    if CASES[case].family == "Phi4Multimodal":
        with torch.inference_mode():
            return phi4_hearing.logits_of(model, given, also.get("input_features", []))
    if CASES[case].family == "GraniteSpeech":
        return _theirs_by_rows(model, given, also.get("input_features", []))
    if CASES[case].family == "Qwen3OmniMoeThinker":
        return _theirs_each_alone(case, model, given, sounds)
    with torch.inference_mode():
        found: torch.Tensor = model(given, attention_mask=torch.ones_like(given), **also).logits[0]
    return found


def _theirs_each_alone(
    case: str, model: Any, given: torch.Tensor, sounds: Sequence[Heard]
) -> torch.Tensor:
    """transformers' logits where each sound is encoded by itself: beside a longer one, a short one
    would be filled up with zeros."""
    embedded = model.get_input_embeddings()(given)
    with torch.inference_mode():
        seen = [model.get_audio_features(**their_features(case, [each])) for each in sounds]
        if seen:
            rows = torch.cat([each.last_hidden_state for each in seen])
            embedded = embedded.masked_scatter((given == PLACEHOLDER)[..., None], rows)
        found: torch.Tensor = model(
            inputs_embeds=embedded, attention_mask=torch.ones_like(given)
        ).logits[0]
    return found


def _theirs_by_rows(model: Any, given: torch.Tensor, sounds: Sequence[torch.Tensor]) -> Any:
    """transformers' logits where each sound is encoded by itself: in a batch, a shorter one would
    see the silence behind it."""
    with torch.inference_mode():
        rows = [model.get_audio_features(each).pooler_output[0] for each in sounds]
        heard = given == PLACEHOLDER
        embedded = model.get_input_embeddings()(given.masked_fill(heard, 0))
        if rows:
            embedded[heard] = torch.cat(rows)
        found = model(inputs_embeds=embedded, attention_mask=torch.ones_like(given)).logits[0]
    # Without Granite's own class, 5.17 leaves out what that divides logits by: the same tokens are
    # the likeliest.
    return found / model.config.text_config.logits_scaling


def runner_of(
    ours: HearingModel, backend: str = "reference", *, observer: Observer | None = None
) -> StepRunner[Any]:
    """backend: that computes the decoder."""
    forward: ReferenceForward | CPUForward
    bounds = SlotBounds(8, 128, 16, ours.config.vocab_size, POSITIONS)
    if backend != "reference":
        own = CPUModel(ours.config, ours.files, "float32", positions=POSITIONS, backend=backend)
        forward = cast("CPUForward", own.forward(block_size=16, num_blocks=128, threads=2))
        bounds = replace(bounds, groups=own.recipe().kv_groups)
    else:
        shape = CacheShape.of(ours.config, 16, ours.decoder.dtype)
        forward = ReferenceForward(ours.decoder, ReferenceAttention(shape, 128))
    media = MediaEncodings(
        rows=256,
        row_bytes=1,
        load_bytes=1 << 20,
        sections=any(rope.sections for rope in ours.config.ropes),
        stand_in=stand_in_of(ours.config),
    )
    media.see_with(Hearing(ours.tower, forward.count_layer))
    return host_runner(forward, choose(1), Slots(bounds), observer=observer, media=media)
