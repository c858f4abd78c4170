"""A GGUF model that hears by its mmproj file answers as the checkpoint that both were made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
import torch

from penstock.formats.gguf import GGUFFile
from penstock.model.media_facts import KindFacts
from penstock.model.prepared_model import WeightFiles
from penstock.model.sound_facts import BlockMel, PairedMel
from penstock.model.transcription_facts import SpokenChat
from penstock.prepare.gguf_config import read_config
from penstock.prepare.mmproj.reading import read_mmproj
from penstock_worker.media.hearing import AudioModel, open_audio_tower
from penstock_worker.media.interface import MEL
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.opening import open_weights
from tests.shared.media.media_tokenizer import tokenizer
from tests.worker.audio.hearing_cases import BINS, CASES
from tests.worker.audio.hearing_models import (
    HearingModel,
    Part,
    both,
    heard,
    job_of,
    runner_of,
    theirs_of,
    words,
)
from tests.worker.driver import Driver, Job, LogitsOf
from tests.worker.models.gguf_writing import Conversion
from tests.worker.models.parity import compare_answer, run_recorded
from tests.worker.vision.mmproj_tensors import of_blocks
from tests.worker.vision.mmproj_writer import finish, in_blocks, qwen3_asr_text, write_text_half
from tests.worker.vision.picture_runners import load
from tests.worker.vision.pictures import text_of
from tests.worker.vision.vision_cases import POSITIONS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ARCH = gguf.MODEL_ARCH.MMPROJ
TOKENS = {
    "qwen2-audio": "<|AUDIO|>",
    "voxtral": "[AUDIO]",
    "qwen3-asr": "<|audio_pad|>",
    "granite-speech": "<|audio|>",
}
"""What stands for a sound in each case."""
AROUND = ("<|audio_start|>", "<|audio_end|>")


def write_mmproj(path: Path, theirs: Any) -> None:
    audio, named = theirs.config.audio_config, theirs.config.model_type
    writer = gguf.GGUFWriter(str(path), gguf.MODEL_ARCH_NAMES[ARCH])
    writer.add_clip_has_audio_encoder(True)
    writer.add_clip_projector_type({"qwen2_audio": "qwen2a"}.get(named, named))
    writer.add_audio_projection_dim(theirs.config.text_config.hidden_size)
    writer.add_audio_embedding_length(audio.hidden_size)
    writer.add_audio_feed_forward_length(
        getattr(audio, "encoder_ffn_dim", None) or audio.intermediate_size
    )
    writer.add_audio_block_count(audio.num_hidden_layers)
    writer.add_audio_head_count(audio.num_attention_heads)
    writer.add_audio_num_mel_bins(BINS)
    writer.add_audio_attention_layernorm_eps(1e-5)
    if named == "voxtral":
        writer.add_audio_stack_factor(4)
    names = gguf.get_tensor_name_map(ARCH, 8)
    for name, tensor in theirs.state_dict().items():
        if "language_model" in name or name.startswith("lm_head"):
            continue
        inner = name.removeprefix("model.").replace("multi_modal", "audio.multi_modal")
        found = names.get_name(inner, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        if ".conv" in name and name.endswith("bias"):
            tensor = tensor[:, None]
        writer.add_tensor(found, tensor.contiguous().float().numpy())
    finish(writer)


def write_asr(path: Path, theirs: Any) -> None:
    """The makers' own names have the projector in the encoder."""
    writer = gguf.GGUFWriter(str(path), gguf.MODEL_ARCH_NAMES[ARCH])
    writer.add_clip_has_audio_encoder(True)
    writer.add_clip_audio_projector_type("qwen3a")
    in_blocks(writer, theirs.config)
    names = gguf.get_tensor_name_map(ARCH, 8)
    for name, tensor in theirs.state_dict().items():
        if "language_model" in name or name.startswith("lm_head"):
            continue
        inner = name.removeprefix("model.")
        inner = inner.replace("multi_modal_projector.linear_", "audio_tower.proj")
        found = names.get_name(inner, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        writer.add_tensor(found, of_blocks(inner, tensor).contiguous().float().numpy())
    finish(writer)


def write_granite(path: Path, theirs: Any) -> None:
    """Norms over a batch become factors, keys and values part, and convolutions are matrices."""
    config = theirs.config
    encoder, queries = config.encoder_config, config.projector_config
    writer = gguf.GGUFWriter(str(path), gguf.MODEL_ARCH_NAMES[ARCH])
    writer.add_clip_has_audio_encoder(True)
    writer.add_clip_projector_type("granite_speech")
    writer.add_audio_projection_dim(config.text_config.hidden_size)
    writer.add_audio_embedding_length(encoder.hidden_dim)
    writer.add_audio_feed_forward_length(encoder.hidden_dim * encoder.feedforward_mult)
    writer.add_audio_block_count(encoder.num_layers)
    writer.add_audio_head_count(encoder.num_heads)
    writer.add_audio_num_mel_bins(encoder.input_dim)
    writer.add_audio_attention_layernorm_eps(1e-5)
    writer.add_audio_chunk_size(encoder.context_size)
    writer.add_audio_conv_kernel_size(encoder.conv_kernel_size)
    writer.add_audio_max_pos_emb(encoder.max_pos_emb)
    writer.add_audio_projector_window_size(config.window_size)
    writer.add_audio_projector_downsample_rate(config.downsample_rate)
    writer.add_audio_projector_head_count(queries.num_attention_heads)
    names = gguf.get_tensor_name_map(ARCH, 8)
    state = {name.removeprefix("model."): each for name, each in theirs.state_dict().items()}
    for name, tensor in state.items():
        if "language_model" in name or "lm_head" in name or name.endswith("batches_tracked"):
            continue
        for inner, part in of_granite(name, tensor, state):
            found = names.get_name(inner, try_suffixes=(".weight", ".bias"))
            assert found is not None, inner
            found = found.removesuffix(".weight") if "rel_pos_emb" in found else found
            writer.add_tensor(found, part.contiguous().float().numpy())
    finish(writer)


def of_granite(
    name: str, tensor: torch.Tensor, state: dict[str, torch.Tensor]
) -> list[tuple[str, torch.Tensor]]:
    if ".batch_norm." in name:
        at, _, kind = name.rpartition(".")
        weight, bias, mean, variance = (
            state[f"{at}.{each}"] for each in ("weight", "bias", "running_mean", "running_var")
        )
        factor = weight * torch.rsqrt(variance + 1e-5)
        made = {"weight": factor, "bias": bias - mean * factor}
        return [(name, made[kind])] if kind in made else []
    if ".to_kv." in name:
        return [
            (name.replace("to_kv", which), half)
            for which, half in zip(("to_k", "to_v"), tensor.chunk(2), strict=True)
        ]
    if ".depth_conv." in name:
        return [(name, tensor[:, 0])]
    return [(name, tensor[..., 0] if "_conv." in name and tensor.dim() == 3 else tensor)]


WRITERS = {"granite-speech": write_granite, "qwen3-asr": write_asr}


def pair(case: str, folder: Path) -> tuple[HearingModel, KindFacts]:
    """The model of two files that transformers' became."""
    theirs, _ = both(case)
    text, mmproj = folder / "text.gguf", folder / "mmproj.gguf"
    how = Conversion(gguf.MODEL_ARCH.QWEN3VL, qwen3_asr_text) if case == "qwen3-asr" else None
    write_text_half(text, theirs, how=how)
    WRITERS.get(case, write_mmproj)(mmproj, theirs)
    words_of = tokenizer(*AROUND).to_str().replace("<|AUDIO|>", TOKENS[case]).encode()
    config, media = read_mmproj(mmproj, read_config(GGUFFile(text)), words_of)
    files = WeightFiles(format="gguf", files=(str(text),), dtype="F32", mmproj=str(mmproj))
    ours = HearingModel(
        config,
        DecoderModel(config, open_weights(files, config, torch.float32), POSITIONS),
        AudioModel(config, open_audio_tower(files, torch.float32)),
        files,
    )
    return ours, media.kinds["audio"]


@pytest.mark.parametrize("case", TOKENS)
def test_two_files_answer_as_the_checkpoint(case: str, tmp_path: Path) -> None:
    _, hub = both(case)
    ours, facts = pair(case, tmp_path)
    prepared, told = CASES[case].mel, hub.config.audio
    if isinstance(prepared, PairedMel):
        prepared = msgspec.structs.replace(prepared, seconds=30)
    if isinstance(prepared, BlockMel):
        prepared = msgspec.structs.replace(prepared, least=8000, seconds=30)
        told = msgspec.structs.replace(told, tower=msgspec.structs.replace(told.tower, seen=8))
    assert (facts.preparation, facts.placeholder) == (prepared, TOKENS[case])
    assert ours.config.audio == told
    assert not any(rope.sections for rope in ours.config.ropes)
    one = heard(case, 0.7, 1)
    with torch.inference_mode():
        assert torch.equal(*(each.tower.encode({MEL: one.mel}) for each in (ours, hub)))
    assert answer(case, ours, tmp_path) == answer(case, hub, tmp_path)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("case", TOKENS)
def test_prompts_of_two_files_equal_transformers(case: str, backend: str, tmp_path: Path) -> None:
    """Log-probabilities and greedy tokens, of several prompts in one batch, and the same bits of
    each alone. Sounds are shorter than what sees itself by the files' numbers."""
    theirs, _ = both(case)
    ours, _ = pair(case, tmp_path)
    least = 1.1 if case == "voxtral" else 0.3
    one, other = heard(case, least, 1), heard(case, least + 0.4, 2)
    prompts: list[list[Part]] = [
        [words(5, 1), one, words(9, 2)],
        [other, words(30, 3), one, words(2, 4)],
        [words(20, 5)],
    ]

    def run(some: list[list[Part]], budget: int) -> list[tuple[Job, torch.Tensor]]:
        seen = LogitsOf()
        runner = runner_of(ours, backend, observer=seen)
        load(runner, tmp_path, one, other)
        driver = Driver(runner, num_blocks=128, slots=8, budget=budget)
        driver.encode = [one.item.name, other.item.name]
        return run_recorded(driver, [job_of(parts, 6) for parts in some], seen)

    compared, together = 0, run(prompts, 37)
    for (job, found), parts in zip(together, prompts, strict=True):
        tokens = text_of(job.tokens)
        true = theirs_of(case, theirs, parts, tokens)[: len(found)]
        compared += compare_answer(found, true, len(job.prompt), tokens)
        ((alone, again),) = run([parts], 512)
        assert alone.tokens == job.tokens
        assert torch.equal(again, found)
    assert compared >= 9


def test_what_stands_around_a_sound_is_written_once(tmp_path: Path) -> None:
    """The converter's own template writes nothing; the makers' writes it."""
    theirs, _ = both("qwen3-asr")
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    write_text_half(text, theirs, how=Conversion(gguf.MODEL_ARCH.QWEN3VL, qwen3_asr_text))
    write_asr(mmproj, theirs)
    words_of = tokenizer(*AROUND, "<|audio_pad|>", "<asr_text>").to_str().encode()
    decoder = read_config(GGUFFile(text))
    for template, around in (("{{ content }}", AROUND), ("<|audio_start|>", ("", ""))):
        _, media = read_mmproj(mmproj, decoder, words_of, template)
        facts, chat = media.kinds["audio"], media.transcription
        assert (facts.before, facts.behind) == around
        assert isinstance(chat, SpokenChat)
        whole = chat.before + facts.before + "<|audio_pad|>" + facts.behind + chat.behind
        assert whole == (
            "<|im_end|>\n<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|><|im_end|>\n"
            "<|im_start|>assistant\n"
        )


def answer(case: str, ours: HearingModel, folder: Path) -> list[int]:
    one = heard(case, 0.7, 1)
    parts: list[Part] = [words(5, 1), one, words(9, 2)]
    runner = runner_of(ours)
    load(runner, folder, one)
    driver = Driver(runner, num_blocks=128, slots=8, budget=64)
    driver.encode = [one.item.name]
    job = job_of(parts, 6)
    while not job.done:
        driver._step([job])
    return job.tokens
