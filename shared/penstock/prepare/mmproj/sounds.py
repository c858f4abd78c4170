"""mmproj files of models that hear: Qwen2-Audio and Voxtral. Both have Whisper's encoder."""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families.audio import MAX_BINS, MAX_POSITIONS
from penstock.families.vision.reading import MAX_WIDTH, bounded, heads
from penstock.model.audio_spec import AudioSpec, AudioTowerSpec, LinearProjector, StackProjector
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts, LogMel
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, as_written

RATE, N_FFT, HOP = 16_000, 400, 160
"""Settings of Whisper's feature extractor, which aren't in the file: Hz, and samples."""
MAX_FACTOR = 64


def qwen2_audio(found: MmprojFile, tokens: MmprojTokens) -> tuple[AudioSpec, Kinds]:
    tower = _tower(found, pooled=True)
    spec = AudioSpec(tower=tower, projector=LinearProjector(), cut=True)
    return spec, _kinds(found, spec, tower, *tokens.id_of("<|AUDIO|>"))


def voxtral(found: MmprojFile, tokens: MmprojTokens) -> tuple[AudioSpec, Kinds]:
    tower = _tower(found, pooled=False)
    factor = bounded(found.keys, "projector.stack_factor", MAX_FACTOR)
    if tower.positions % factor:
        raise found.keys.wrong("projector.stack_factor", f"a divisor of {tower.positions}")
    spec = AudioSpec(tower=tower, projector=StackProjector(factor=factor))
    return spec, _kinds(found, spec, tower, *tokens.id_of("[AUDIO]"))


def _tower(found: MmprojFile, *, pooled: bool) -> AudioTowerSpec:
    keys = found.keys
    positions, _ = found.shape("a.position_embd.weight", 2)
    if not 1 <= positions <= MAX_POSITIONS or (pooled and positions % 2):
        raise UnsupportedModel(
            f"{found.file.path}: a.position_embd has {positions} rows; an even number of up to "
            f"{MAX_POSITIONS} is needed"
        )
    hidden = found.hidden_size()
    return AudioTowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(keys, "feed_forward_length", MAX_WIDTH),
        num_layers=found.num_layers(),
        num_heads=heads(keys, "attention.head_count", hidden),
        mel_bins=bounded(keys, "num_mel_bins", MAX_BINS),
        positions=positions,
        norm=NormSpec(
            kind="layer",
            eps=as_written(keys.number("attention.layer_norm_epsilon", 1e-5)),
            bias=True,
        ),
        pooled=pooled,
    )


def _kinds(
    found: MmprojFile, spec: AudioSpec, tower: AudioTowerSpec, token: str, token_id: int
) -> Kinds:
    samples = tower.chunk_frames * HOP
    if samples % RATE:
        raise UnsupportedModel(
            f"{found.file.path}: a.position_embd has {tower.positions} rows; those of whole "
            "seconds are needed, 50 each"
        )
    mel = LogMel(
        sampling_rate=RATE,
        bins=tower.mel_bins,
        n_fft=N_FFT,
        hop=HOP,
        seconds=samples // RATE,
        row_frames=spec.row_frames,
        many=not spec.cut,
        cut=spec.cut,
    )
    return {"audio": KindFacts(preparation=mel, placeholder=token, token=token, token_id=token_id)}
