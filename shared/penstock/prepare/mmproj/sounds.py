"""Audio towers in mmproj files: Qwen2-Audio and Voxtral, which have Whisper's encoder, Qwen3-ASR,
Qwen2.5-Omni, Qwen3-Omni, and Granite Speech."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.errors import UnsupportedModel
from penstock.families.audio import MAX_POSITIONS
from penstock.families.granite_speech import MAX_SEEN, QUERY_NORM
from penstock.families.hearing import MAX_BINS
from penstock.families.tower_names import TowerNames, under
from penstock.families.vision.reading import MAX_WIDTH, bounded, heads
from penstock.model.audio_spec import AudioSpec, AudioTowerSpec, BlockConformerSpec, BlockTowerSpec
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.sound_facts import BlockMel, LogMel, PairedMel
from penstock.model.sound_projector_spec import (
    LinearProjector,
    NarrowProjector,
    QueryProjector,
    StackProjector,
)
from penstock.prepare.mmproj.common_names import HEARS
from penstock.prepare.mmproj.file import MAX_LAYERS, Kinds, MmprojFile, MmprojTokens, as_written
from penstock.prepare.mmproj.kinds import MmprojEars, MmprojKind
from penstock.prepare.sound_readers import WINDOW_SECONDS
from penstock.prepare.transcription import asked_chat, spoken_chat

RATE, N_FFT, HOP = 16_000, 400, 160
"""Settings of Whisper's feature extractor, which aren't in the file: Hz, and samples."""
MAX_FACTOR = 64
BLOCK, SEEN = 100, 8
"""Windows of a block, and blocks that see one another, which are in no file: those of all releases
of Qwen3-ASR and Qwen3-Omni."""
OMNI_BLOCK, OMNI_SECONDS = 200, 300
"""Windows of a block, and the longest sound, of all releases of Qwen2.5-Omni, likewise."""
ASR_LEAST = 8000
"""Samples to which Qwen3-ASR's extractor fills up a shorter sound."""
SOUND, SOUND_BEGIN, SOUND_END = "<|audio_pad|>", "<|audio_start|>", "<|audio_end|>"


def qwen2_audio(found: MmprojFile, tokens: MmprojTokens) -> tuple[AudioSpec, Kinds]:
    tower = _tower(found, pooled=True)
    spec = AudioSpec(tower=tower, projector=LinearProjector(), cut=True)
    return spec, _kinds(found, spec, tower, *tokens.id_of("<|AUDIO|>"))


def qwen2_5_omni_sounds(found: MmprojFile, tokens: MmprojTokens) -> tuple[AudioSpec, Kinds]:
    """Reads Qwen2.5-Omni's tower, which is Qwen2-Audio's, but in blocks."""
    tower = replace(_tower(found, pooled=True), block=OMNI_BLOCK)
    if tower.hidden_size % 2 or 2 * tower.positions < OMNI_BLOCK:
        raise UnsupportedModel(
            f"{found.file.path}: a.position_embd is {tower.positions} x {tower.hidden_size}; "
            f"{OMNI_BLOCK // 2} rows at least are needed, of an even size"
        )
    spec = AudioSpec(tower=tower, projector=LinearProjector(), cut=True)
    mel = LogMel(
        sampling_rate=RATE,
        bins=tower.mel_bins,
        n_fft=N_FFT,
        hop=HOP,
        seconds=OMNI_SECONDS,
        row_frames=spec.row_frames,
        cut=True,
        exact=True,
    )
    token = tokens.id_of("<|AUDIO|>")
    facts = KindFacts.marked(mel, token)
    return spec, {"audio": facts}


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
        norm=_norm(found),
        pooled=pooled,
    )


def _norm(found: MmprojFile) -> NormSpec:
    eps = as_written(found.keys.number("attention.layer_norm_epsilon", 1e-5))
    return NormSpec(kind="layer", eps=eps, bias=True)


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
    return {"audio": KindFacts.marked(mel, (token, token_id))}


def qwen3_asr(found: MmprojFile, tokens: MmprojTokens) -> tuple[AudioSpec, Kinds]:
    """Reads Qwen3-ASR's."""
    return _in_blocks(found, tokens, short_alone=False, least=ASR_LEAST)


def qwen3_omni_sounds(found: MmprojFile, tokens: MmprojTokens) -> tuple[AudioSpec, Kinds]:
    """Reads Qwen3-Omni's, whose extractor doesn't fill up short sounds: a window must lie in
    one."""
    return _in_blocks(found, tokens, short_alone=True, least=N_FFT)


def _in_blocks(
    found: MmprojFile, tokens: MmprojTokens, *, short_alone: bool, least: int
) -> tuple[AudioSpec, Kinds]:
    """What stands around a sound is written by the makers' chat template; the one that the
    converter puts into Qwen3-ASR's files writes nothing."""
    keys, hidden = found.keys, found.hidden_size()
    channels, *_ = found.shape("a.conv2d.1.weight", 4)
    if not 1 <= channels <= MAX_WIDTH:
        raise UnsupportedModel(f"{found.file.path}: sizes up to {MAX_WIDTH} are allowed")
    if hidden % 2:
        raise keys.wrong("embedding_length", "an even number")
    tower = BlockTowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(keys, "feed_forward_length", MAX_WIDTH),
        num_layers=found.num_layers(),
        num_heads=heads(keys, "attention.head_count", hidden),
        mel_bins=bounded(keys, "num_mel_bins", MAX_BINS),
        channels=channels,
        block=BLOCK,
        short_alone=short_alone,
        seen=SEEN,
        norm=_norm(found),
    )
    mel = BlockMel(
        sampling_rate=RATE,
        bins=tower.mel_bins,
        n_fft=N_FFT,
        hop=HOP,
        block=BLOCK,
        least=least,
        seconds=WINDOW_SECONDS,
    )
    token = tokens.id_of(SOUND)
    around = ("", "")
    if SOUND_BEGIN not in tokens.template:
        around = tokens.id_of(SOUND_BEGIN)[0], tokens.id_of(SOUND_END)[0]
    facts = KindFacts.marked(mel, token, before=around[0], behind=around[1])
    return AudioSpec(tower=tower, projector=NarrowProjector()), {"audio": facts}


def granite_speech(found: MmprojFile, tokens: MmprojTokens) -> tuple[AudioSpec, Kinds]:
    """How sounds are prepared is what all releases have."""
    keys = found.keys
    if keys.listed("feature_layer", int) if "feature_layer" in keys else []:
        raise UnsupportedModel(
            f"{found.file.path}: the outputs of several layers (feature_layer) are not served"
        )
    hidden, bins = found.hidden_size(), bounded(keys, "num_mel_bins", 2 * MAX_BINS)
    count = heads(keys, "attention.head_count", hidden)
    inner, _ = found.shape("a.blk.0.attn_q.weight", 2)
    channels, reach = found.shape("a.blk.0.conv_dw.weight", 2)
    outputs, _ = found.shape("a.enc_ctc_out.weight", 2)
    for size in (inner, channels, reach, outputs):
        if not 1 <= size <= MAX_WIDTH:
            raise UnsupportedModel(f"{found.file.path}: sizes up to {MAX_WIDTH} are allowed")
    if bins % 2 or inner % count:
        raise keys.wrong("num_mel_bins", "an even number, and attention.head_count a divisor,")
    block = bounded(keys, "chunk_size", MAX_SEEN)
    tower = BlockConformerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(keys, "feed_forward_length", MAX_WIDTH),
        num_layers=found.num_layers(),
        num_heads=count,
        head_dim=inner // count,
        mel_bins=bins // 2,
        block=block,
        distances=bounded(keys, "max_pos_emb", MAX_WIDTH),
        channels=channels,
        reach=reach,
        outputs=outputs,
    )
    if block > tower.distances:
        raise keys.wrong("chunk_size", f"{tower.distances} at most, which is max_pos_emb,")
    projector = _queries(found)
    mel = PairedMel(
        sampling_rate=RATE,
        bins=bins // 2,
        frame=400,
        n_fft=512,
        hop=HOP,
        window=projector.window,
        queries=projector.queries,
        seconds=WINDOW_SECONDS,
    )
    token = tokens.id_of("<|audio|>")
    facts = KindFacts.marked(mel, token)
    spec = AudioSpec(
        tower=tower, projector=projector, row_multiplier=found.text.embedding_multiplier
    )
    return spec, {"audio": facts}


def _queries(found: MmprojFile) -> QueryProjector:
    keys = found.keys
    window = bounded(keys, "projector.window_size", MAX_SEEN)
    rate = bounded(keys, "projector.downsample_rate", MAX_SEEN)
    queries, size = found.shape("a.proj_query", 2)
    inner, _ = found.shape("a.proj_blk.0.ffn_up.weight", 2)
    if window % rate or queries != window // rate or not 1 <= max(size, inner) <= MAX_WIDTH:
        raise keys.wrong("projector.downsample_rate", f"{window} by the number of queries")
    layers = 1
    while layers < MAX_LAYERS and found.has(f"a.proj_blk.{layers}.ffn_up.weight"):
        layers += 1
    return QueryProjector(
        window=window,
        queries=queries,
        hidden_size=size,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads(keys, "projector.head_count", size),
        seeing=1,
        norm=QUERY_NORM,
    )


QWEN2_AUDIO = MmprojKind("qwen2a", "Qwen2-Audio", ("qwen2",), qwen2_audio, HEARS, hears=True)
VOXTRAL = MmprojKind("voxtral", "Voxtral", ("llama",), voxtral, HEARS, hears=True)
QWEN3_ASR = MmprojKind(
    "qwen3a",
    "Qwen3-ASR",
    ("qwen3",),
    qwen3_asr,
    HEARS,
    hears=True,
    counted=True,
    transcribes=lambda sound, tokens: spoken_chat(tokens.tokenizer, sound),
)
QWEN3_OMNI = MmprojEars("qwen3a", qwen3_omni_sounds, HEARS)
QWEN2_5_OMNI = MmprojEars("qwen2.5o", qwen2_5_omni_sounds, HEARS)
_IN_LAYER: TowerNames = {
    "ffn_norm": "ff1.pre_norm",
    "ffn_up": "ff1.up_proj",
    "ffn_down": "ff1.down_proj",
    "ffn_norm_1": "ff2.pre_norm",
    "ffn_up_1": "ff2.up_proj",
    "ffn_down_1": "ff2.down_proj",
    "ln1": "attn.pre_norm",
    **{f"attn_{part}": f"attn.to_{part}" for part in ("q", "k", "v", "out")},
    "attn_rel_pos_emb": "attn.rel_pos_emb.weight",
    "attn_rel_pos_emb.weight": "attn.rel_pos_emb.weight",
    "norm_conv": "conv.norm",
    "conv_pw1": "conv.up_conv",
    "conv_dw": "conv.depth_conv.conv",
    "conv_norm": "conv.batch_norm",
    "conv_pw2": "conv.down_conv",
    "ln2": "post_norm",
}
_IN_QUERY_LAYER: TowerNames = {
    **{
        f"{theirs}_attn_{part}": f"{ours}.attention.{inner}"
        for theirs, ours in (("self", "attention"), ("cross", "crossattention"))
        for part, inner in (("q", "query"), ("k", "key"), ("v", "value"))
    },
    "self_attn_out": "attention.output.dense",
    "self_attn_norm": "attention.output.LayerNorm",
    "cross_attn_out": "crossattention.output.dense",
    "cross_attn_norm": "crossattention.output.LayerNorm",
    "ffn_up": "intermediate_query.dense",
    "ffn_down": "output_query.dense",
    "ffn_norm": "output_query.LayerNorm",
}
GRANITE_SPEECH = MmprojKind(
    "granite_speech",
    "Granite Speech",
    ("granite",),
    granite_speech,
    {
        "a": "a",
        "a.input_projection": "input_linear",
        "a.enc_ctc_out": "out",
        "a.enc_ctc_out_mid": "out_mid",
        "a.proj_norm": "projector.qformer.layernorm",
        "a.proj_linear": "projector.linear",
        "a.proj_query": "projector.query",
        **under("a.blk.*", _IN_LAYER, "layers.*"),
        **under("a.proj_blk.*", _IN_QUERY_LAYER, "projector.qformer.encoder.layer.*"),
    },
    hears=True,
    transcribes=lambda sound, _tokens: asked_chat(sound),
)
