"""How sounds are prepared that are no Whisper's: Gemma 3n's, Gemma 4's, Gemma 4 12B's and Granite
Speech's."""

from __future__ import annotations

import math
from typing import Any

from penstock.families import hub_reading as hub
from penstock.families.gemma4_unified_audio import FRAME
from penstock.families.media_tokens import MediaTokens
from penstock.families.vision.gemma3n import (
    CONFORMER_DEFAULTS,
    FOLLOWING,
    HARMLESS_TO_CONFORMER,
    MEL_DEFAULTS,
)
from penstock.formats.fields import Fields
from penstock.media.log_mel import HIGHEST
from penstock.model.audio_spec import AudioSpec, ConformerSpec
from penstock.model.media_facts import KindFacts
from penstock.model.sound_facts import MAX_RATE, EmphasisedMel, FrameMel, PairedMel, Waveform
from penstock.model.sound_projector_spec import EmbedderProjector, QueryProjector
from penstock.prepare.sounds import check_known, of_pictures

GEMMA4 = "Gemma4AudioFeatureExtractor"
SECONDS = 30
"""Longest sound: transformers' extractor leaves out what follows, and its setting isn't in the
file."""
MAX_FRAME = 65_536


def gemma4_sounds(
    values: dict[str, Any], where: str, audio: AudioSpec, tokens: MediaTokens
) -> KindFacts:
    """values: of the feature extractor. Raises UnsupportedModel."""
    settings = Fields({**CONFORMER_DEFAULTS, **_stated(values)}, where)
    hub.only(settings, preemphasis=0.0)
    mel = FrameMel(**_windows(settings, audio, overdrive=False))
    check_known(settings, HARMLESS_TO_CONFORMER)
    return _between(mel, tokens)


def _between(preparation: FrameMel | Waveform, tokens: MediaTokens) -> KindFacts:
    """Sounds of Gemma 4, which stand between two tokens of their own."""
    token = tokens.named("audio_token_id")
    before, _ = tokens.named("boa_token_id")
    behind, _ = tokens.named("eoa_token_index", "eoa_token_id")
    return KindFacts.marked(preparation, token, before=before, behind=behind)


GEMMA4_UNIFIED = "Gemma4UnifiedAudioFeatureExtractor"


def gemma4_unified_sounds(
    values: dict[str, Any], where: str, audio: AudioSpec, tokens: MediaTokens
) -> KindFacts:
    """values: of the feature extractor. Raises UnsupportedModel."""
    frame = audio.tower.hidden_size
    stated = {"sampling_rate": 16_000, "audio_samples_per_token": FRAME}
    settings = Fields({**stated, **_stated(values)}, where)
    hub.only(settings, audio_samples_per_token=frame, feature_size=frame, padding_value=0.0)
    rate = settings.integer("sampling_rate")
    if not 1 <= rate <= MAX_RATE:
        raise settings.wrong("sampling_rate", f"1 to {MAX_RATE} Hz")
    check_known(settings, HARMLESS_TO_CONFORMER)
    return _between(Waveform(sampling_rate=rate, frame=frame), tokens)


def _windows(settings: Fields, audio: AudioSpec, *, overdrive: bool) -> dict[str, Any]:
    """What Gemma's spectrograms have in common, by the names of FrameMel. overdrive: whether the
    transform is twice as long where nothing says so."""
    hub.only(settings, dither=0.0, padding_value=0.0, input_scale_factor=1.0)
    rate = settings.integer("sampling_rate")
    frame, hop = (
        round(rate * settings.number(f"{name}_length_ms") / 1000) for name in ("frame", "hop")
    )
    lowest, highest = settings.number("min_frequency"), settings.number("max_frequency")
    floor = settings.number("mel_floor")
    if not 1 <= rate <= MAX_RATE or not 2 <= frame <= MAX_FRAME or not 1 <= hop <= MAX_FRAME:
        raise settings.wrong("frame_length_ms", f"2 to {MAX_FRAME} samples, and hop_length_ms 1,")
    if not 0 <= lowest < highest or floor <= 0:
        raise settings.wrong("max_frequency", "more than min_frequency, and mel_floor above 0,")
    doubled, bins = settings.flag("fft_overdrive", overdrive), settings.integer("feature_size")
    if bins != audio.tower.mel_bins:
        raise settings.wrong("feature_size", f"{audio.tower.mel_bins}, what the tower hears,")
    return {
        "sampling_rate": rate,
        "bins": bins,
        "lowest": lowest,
        "highest": highest,
        "frame": frame,
        "hop": hop,
        "n_fft": 2 ** math.ceil(math.log2(frame)) * (2 if doubled else 1),
        "floor": floor,
        "seconds": SECONDS,
    }


MULTIPLE = 128
"""Samples: transformers' processor fills up sounds to so many, and no file says it."""


def gemma3n_sounds(
    values: dict[str, Any], where: str, audio: AudioSpec, tokens: MediaTokens
) -> KindFacts:
    """values: of the feature extractor, in releases with the settings of pictures among them.
    Raises UnsupportedModel."""
    mel = gemma3n_mel(values, where, audio)
    return between_lines(mel, tokens.named("audio_token_id"), tokens.named("boa_token_id")[0])


def gemma3n_mel(values: dict[str, Any], where: str, audio: AudioSpec) -> EmphasisedMel:
    """Returns how sounds are prepared. values: as of gemma3n_sounds. Raises UnsupportedModel."""
    settings = Fields({**MEL_DEFAULTS, **_stated(values)}, where)
    tower, projector = audio.tower, audio.projector
    if not isinstance(projector, EmbedderProjector) or not isinstance(tower, ConformerSpec):
        raise TypeError(f"{projector} has no rows of its own")
    hub.only(settings, preemphasis_htk_flavor=True, audio_seq_length=projector.vectors)
    emphasis = settings.number("preemphasis")
    if not 0 <= emphasis <= 1:
        raise settings.wrong("preemphasis", "a share, 0 to 1")
    mel = EmphasisedMel(
        **_windows(settings, audio, overdrive=True),
        emphasis=emphasis,
        multiple=MULTIPLE,
        rows=projector.rows,
    )
    longest = tower.vectors(mel.frames(mel.seconds * mel.sampling_rate))
    if longest > projector.vectors:
        raise settings.wrong(
            "hop_length_ms",
            f"one by which {mel.seconds} s become {projector.vectors} vectors at most,",
        )
    check_known(settings, (*HARMLESS_TO_CONFORMER, *FOLLOWING, *of_pictures(values)))
    return mel


def between_lines(mel: EmphasisedMel, sound: tuple[str, int], before: str) -> KindFacts:
    """Sounds of Gemma 3n; the token that ends one is the last of its rows (see EmbedderProjector).
    sound: token and id of its rows.  before: the token in front of them."""
    return KindFacts.marked(mel, sound, before=f"\n\n{before}", behind="\n\n")


def _stated(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings without nulls, which stand for defaults: means and deviations of bands
    are none."""
    return {key: value for key, value in values.items() if value is not None}


GRANITE = "GraniteSpeechFeatureExtractor"
_MEL: dict[str, int] = {"n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 80}
_OF_GRANITE: dict[str, Any] = {
    "sampling_rate": 16_000,
    "projector_window_size": 15,
    "projector_downsample_rate": 5,
}
_HARMLESS_TO_GRANITE = (
    "audio_processor_type",
    "feature_extractor_type",
    "feature_size",  # its melspec_kwargs say it
    "padding_side",
    "processor_class",
    "return_attention_mask",
)
WINDOW_SECONDS = 30
"""Seconds of a recording that are transcribed together: no file says how many."""


def granite_sounds(
    values: dict[str, Any], where: str, audio: AudioSpec, tokens: MediaTokens
) -> KindFacts:
    """values: of the feature extractor. Raises UnsupportedModel."""
    settings = Fields({**_OF_GRANITE, **_stated(values)}, where)
    projector = audio.projector
    if not isinstance(projector, QueryProjector):
        raise TypeError(f"{projector} has no windows")
    rate, spectrum = settings.integer("sampling_rate"), settings.section("melspec_kwargs")
    hub.only(settings, padding_value=0.0)
    hub.only(
        settings,
        projector_window_size=projector.window,
        projector_downsample_rate=projector.window // projector.queries,
    )
    hub.only(spectrum, sample_rate=rate)
    sizes = {name: spectrum.integer(name, default) for name, default in _MEL.items()}
    if rate != 2 * HIGHEST:
        raise settings.wrong("sampling_rate", f"{2 * HIGHEST:g}")
    frame, n_fft = sizes["win_length"], sizes["n_fft"]
    if not 2 <= frame <= n_fft <= MAX_FRAME or n_fft % 2 or not 1 <= sizes["hop_length"] <= n_fft:
        raise spectrum.wrong("n_fft", f"an even number up to {MAX_FRAME}, no less than win_length,")
    if sizes["n_mels"] != audio.tower.mel_bins:
        raise spectrum.wrong("n_mels", f"{audio.tower.mel_bins}, half the encoder's input_dim,")
    check_known(spectrum, ())
    check_known(settings, _HARMLESS_TO_GRANITE)
    mel = PairedMel(
        sampling_rate=rate,
        bins=sizes["n_mels"],
        frame=frame,
        n_fft=n_fft,
        hop=sizes["hop_length"],
        window=projector.window,
        queries=projector.queries,
        seconds=WINDOW_SECONDS,
    )
    return KindFacts.marked(mel, tokens.named("audio_token_index", "audio_token_id"))
