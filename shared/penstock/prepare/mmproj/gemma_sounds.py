"""The audio towers of Gemma 3n and 4 in mmproj files."""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families.gemma3n_audio import CUMULATIVE_EPS, DEFAULTS, FORM, VECTORS
from penstock.families.hearing import MAX_BINS
from penstock.families.tower_names import TowerNames, under
from penstock.families.vision.reading import MAX_WIDTH, bounded, heads
from penstock.model.audio_spec import AudioSpec, ConformerSpec, WaveformSpec
from penstock.model.media_facts import KindFacts
from penstock.model.sound_facts import FrameMel, Waveform
from penstock.model.sound_projector_spec import EmbedderProjector, NormedProjector
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens
from penstock.prepare.mmproj.gemma import SPARE_TOKENS
from penstock.prepare.mmproj.kinds import MmprojEars
from penstock.prepare.sound_readers import SECONDS, between_lines, gemma3n_mel

RATE = 16_000
"""Hz, of all sounds."""
WINDOW = 12
"""Vectors that one of Gemma 4's attends to, which isn't in the file."""
EPS = 1e-6
"""What Gemma 3n's norms add in all releases; the converter writes another number."""


def _conformer(found: MmprojFile, also: dict[str, int], **own: Any) -> ConformerSpec:
    """The file says sizes alone; the rest, and how sounds are prepared, is what all releases have.
    also: further sizes of tensors, which must be within bounds.  own: settings of the family's."""
    first, *_ = found.shape("a.conv1d.0.weight", 4)
    second, *_ = found.shape("a.conv1d.1.weight", 4)
    _, reach = found.shape("a.blk.0.conv_dw.weight", 2)
    sizes = {"a.conv1d.0.weight": first, "a.conv1d.1.weight": second} | also
    for name, size in (sizes | {"a.blk.0.conv_dw.weight": reach}).items():
        if not 1 <= size <= MAX_WIDTH:
            raise UnsupportedModel(
                f"{found.file.path}: {name} is of size {size}; 1 to {MAX_WIDTH} are allowed"
            )
    hidden = found.hidden_size()
    return ConformerSpec(
        hidden_size=hidden,
        num_layers=found.num_layers(),
        num_heads=heads(found.keys, "attention.head_count", hidden),
        mel_bins=bounded(found.keys, "num_mel_bins", MAX_BINS),
        channels=(first, second),
        reach=reach,
        **own,
    )


def gemma3n_sounds(found: MmprojFile, tokens: MmprojTokens) -> tuple[AudioSpec, Kinds]:
    """Reads Gemma 3n's. The last embedding of the tower's own vocabulary fills up sounds, and the
    first ends them, as in all releases."""
    vocab, _ = found.shape("mm.a.embedding.weight", 2)
    tower = _conformer(
        found,
        {"mm.a.embedding.weight": vocab},
        window=DEFAULTS["conf_attention_context_left"],
        eps=EPS,
        cumulative_eps=CUMULATIVE_EPS,
        every=DEFAULTS["conf_reduction_factor"],
        **FORM,
    )
    projector = EmbedderProjector(eps=EPS, vocab=vocab, filler=vocab - 1, end=0, vectors=VECTORS)
    spec = AudioSpec(tower=tower, projector=projector)
    # Not the first of the unused ones, which may stand for pictures.
    sound = tokens.id_of("<audio_soft_token>", *SPARE_TOKENS[1:])
    before, _ = tokens.id_of("<start_of_audio>")
    mel = gemma3n_mel({"feature_size": tower.mel_bins}, str(found.file.path), spec)
    return spec, {"audio": between_lines(mel, sound, before)}


def gemma4_sounds(found: MmprojFile, tokens: MmprojTokens) -> tuple[AudioSpec, Kinds]:
    outputs, _ = found.shape("a.pre_encode.out.weight", 2)
    tower = _conformer(
        found,
        {"a.pre_encode.out.weight": outputs},
        window=WINDOW,
        outputs=outputs,
        clipped=found.has("a.blk.0.attn_q.input_max"),
    )
    mel = FrameMel(
        sampling_rate=RATE,
        bins=tower.mel_bins,
        lowest=0.0,
        highest=8000.0,
        frame=320,
        hop=160,
        n_fft=512,
        floor=1e-3,
        seconds=SECONDS,
    )
    spec = AudioSpec(tower=tower, projector=NormedProjector(eps=tower.eps))
    return spec, _gemma4_heard(mel, tokens)


def gemma4_unified_sounds(found: MmprojFile, tokens: MmprojTokens) -> tuple[AudioSpec, Kinds]:
    """Reads Gemma 4 12B's: how many samples a row is made of, its tensor alone tells."""
    _, frame = found.shape("mm.a.input_projection.weight", 2)
    if not 1 <= frame <= MAX_WIDTH:
        raise UnsupportedModel(
            f"{found.file.path}: mm.a.input_projection.weight takes {frame} samples; 1 to "
            f"{MAX_WIDTH} are allowed"
        )
    spec = AudioSpec(
        tower=WaveformSpec(frame=frame), projector=NormedProjector(eps=found.norm_eps())
    )
    return spec, _gemma4_heard(Waveform(sampling_rate=RATE, frame=frame), tokens)


def _gemma4_heard(preparation: FrameMel | Waveform, tokens: MmprojTokens) -> Kinds:
    token = tokens.id_of("<|audio|>")
    before, _ = tokens.id_of("<|audio>")
    behind, _ = tokens.id_of("<audio|>")
    facts = KindFacts.marked(preparation, token, before=before, behind=behind)
    return {"audio": facts}


_IN_LAYER: TowerNames = {
    "ffn_norm": "feed_forward1.pre_layer_norm",
    "ffn_up": "feed_forward1.ffw_layer_1",
    "ffn_down": "feed_forward1.ffw_layer_2",
    "ffn_post_norm": "feed_forward1.post_layer_norm",
    "ffn_norm_1": "feed_forward2.pre_layer_norm",
    "ffn_up_1": "feed_forward2.ffw_layer_1",
    "ffn_down_1": "feed_forward2.ffw_layer_2",
    "ffn_post_norm_1": "feed_forward2.post_layer_norm",
    "attn_pre_norm": "norm_pre_attn",
    **{f"attn_{part}": f"{part}_proj" for part in "qkv"},
    "attn_k_rel": "self_attn.relative_k_proj",
    "per_dim_scale": "self_attn.per_dim_scale",
    "attn_out": "self_attn.post",
    "attn_post_norm": "norm_post_attn",
    "conv_norm": "lconv1d.pre_layer_norm",
    "conv_pw1": "lconv1d.linear_start",
    "conv_dw": "lconv1d.depthwise_conv1d",
    "norm_conv": "lconv1d.conv_norm",
    "conv_pw2": "lconv1d.linear_end",
    "ln2": "norm_out",
}
_NAMES: TowerNames = {
    "a": "a",
    "mm.a": "mm.a",
    **{
        f"a.conv1d.{number}{theirs}": f"subsample_conv_projection.layer{number}.{ours}"
        for number in (0, 1)
        for theirs, ours in (("", "conv"), (".norm", "norm"))
    },
    "a.input_projection": "subsample_conv_projection.input_proj_linear",
    "a.pre_encode.out": "output_proj",
    "mm.a.input_projection": "projector",
    **under("a.blk.*", _IN_LAYER, "layers.*"),
}
GEMMA4_EARS = MmprojEars("gemma4a", gemma4_sounds, _NAMES)
GEMMA4_UNIFIED_EARS = MmprojEars("gemma4ua", gemma4_unified_sounds, _NAMES)
_OWN: TowerNames = {
    "ln1": "norm_pre_attn",
    "ln2": "norm_post_attn",
    "layer_pre_norm": "norm_out",
    "linear_pos": "self_attn.relative_k_proj",
}
GEMMA3N_EARS = MmprojEars(
    "gemma3na",
    gemma3n_sounds,
    {
        **_NAMES,
        **under("a.blk.*", {**_IN_LAYER, **_OWN}, "layers.*"),
        "a.pre_encode.out": "subsample_conv_projection.input_proj_linear",
        "mm.a.embedding": "projector.embedding",
        "mm.a.hard_emb_norm": "projector.own_norm",
        "mm.a.soft_emb_norm": "projector.norm",
    },
)
