"""Settings of tiny models that hear, for transformers' configuration classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import (
    Gemma3nAudioFeatureExtractor,
    Gemma4AudioFeatureExtractor,
    Gemma4UnifiedAudioFeatureExtractor,
    Qwen3ASRFeatureExtractor,
    WhisperFeatureExtractor,
)

from penstock.model.sound_facts import (
    BlockMel,
    EmphasisedMel,
    FrameMel,
    LogMel,
    PairedMel,
    SoundPreparation,
    Waveform,
)
from tests.shared.media.sounds import RATE
from tests.worker.audio import gemma3n_hearing, phi4_hearing
from tests.worker.vision.newer_cases import GEMMA4, GEMMA4_TOKENS, GEMMA4_UNIFIED
from tests.worker.vision.omni import AROUND, OMNI_2_5, OMNI_HEARS, OMNI_TEXT, OMNI_TOWER
from tests.worker.vision.vision_cases import PLACEHOLDER, TEXT

BINS = 12


@dataclass(frozen=True)
class HearingCase:
    """transformers' class (without its end), its settings, and how sounds are prepared."""

    family: str
    settings: dict[str, Any]
    mel: SoundPreparation
    stands_for: str = ""
    """The class that config.json names; empty: `family` with the usual end."""

    @property
    def extractor(self) -> Any:
        if isinstance(self.mel, BlockMel):
            return Qwen3ASRFeatureExtractor(
                feature_size=BINS, n_window=self.mel.block // 2, min_length=self.mel.least
            )
        if isinstance(self.mel, EmphasisedMel):
            return Gemma3nAudioFeatureExtractor(feature_size=BINS)
        if isinstance(self.mel, FrameMel):
            return Gemma4AudioFeatureExtractor(feature_size=BINS)
        if isinstance(self.mel, Waveform):
            return Gemma4UnifiedAudioFeatureExtractor()
        if not isinstance(self.mel, LogMel):
            raise TypeError(f"{self.mel} has no extractor here")
        return WhisperFeatureExtractor(feature_size=BINS, chunk_length=self.mel.seconds)

    def config(self) -> Any:
        import transformers

        return getattr(transformers, f"{self.family}Config")(**self.settings)


CONFORMER: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "subsampling_conv_channels": [BINS, 8],
    "attention_chunk_size": 4,
    "attention_context_left": 5,
    "attention_logit_cap": 3.0,
    "conv_kernel_size": 3,
    "output_proj_dims": 40,
    "initializer_range": 0.2,
}
MAGNITUDES = FrameMel(
    sampling_rate=RATE,
    bins=BINS,
    lowest=0.0,
    highest=8000.0,
    frame=320,
    hop=160,
    n_fft=512,
    floor=1e-3,
    seconds=30,
)


SAMPLES = Waveform(sampling_rate=RATE, frame=640)


def granite_speech(encoder: dict[str, Any], queries: dict[str, Any]) -> HearingCase:
    """What differs from a release's form, with tiny sizes."""
    settings = {
        "text_config": TEXT
        | {
            "model_type": "granite",
            "hidden_size": 96,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.7,
            "logits_scaling": 2.0,
            "tie_word_embeddings": True,
        },
        "encoder_config": {
            "input_dim": 2 * BINS,
            "num_layers": 3,
            "hidden_dim": 48,
            "feedforward_mult": 2,
            "num_heads": 4,
            "output_dim": 11,
            "context_size": 9,
            "max_pos_emb": 14,
            "conv_kernel_size": 5,
            "initializer_range": 0.2,
        }
        | encoder,
        "projector_config": {
            "model_type": "blip_2_qformer",
            "hidden_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 56,
            "encoder_hidden_size": 48,
            "cross_attention_frequency": 1,
            "initializer_range": 0.2,
        }
        | queries,
        "window_size": 6,
        "downsample_rate": 3,
        "audio_token_index": PLACEHOLDER,
        "has_lora_adapter": False,
        "tie_word_embeddings": True,
    }
    return HearingCase("GraniteSpeech", settings, PAIRS)


PAIRS = PairedMel(
    sampling_rate=RATE, bins=BINS, frame=400, n_fft=512, hop=160, window=6, queries=2, seconds=2
)
CASES: dict[str, HearingCase] = {
    "gemma4": HearingCase(
        "Gemma4",
        {
            "text_config": GEMMA4
            | {
                "hidden_size_per_layer_input": 32,
                "vocab_size_per_layer_input": 199,
                "use_bidirectional_attention": None,
            },
            "audio_config": CONFORMER,
            **GEMMA4_TOKENS,
            "image_token_id": 999,
            "audio_token_id": PLACEHOLDER,
        },
        MAGNITUDES,
    ),
    "gemma4-unclipped": HearingCase(
        "Gemma4",
        {
            "text_config": GEMMA4,
            "audio_config": CONFORMER | {"use_clipped_linears": False, "gradient_clipping": 0.9},
            **GEMMA4_TOKENS,
            "image_token_id": 999,
            "audio_token_id": PLACEHOLDER,
        },
        MAGNITUDES,
    ),
    "gemma4-12b": HearingCase(
        "Gemma4Unified",
        {
            "text_config": GEMMA4_UNIFIED,
            "audio_config": {"rms_norm_eps": 1e-3},
            **GEMMA4_TOKENS,
            "image_token_id": 999,
            "audio_token_id": PLACEHOLDER,
        },
        SAMPLES,
    ),
    "gemma3n": HearingCase("Gemma3n", gemma3n_hearing.SETTINGS, gemma3n_hearing.MEL),
    "phi4-multimodal": HearingCase(
        "Phi4Multimodal", phi4_hearing.SETTINGS, phi4_hearing.MEL, "Phi4MultimodalForCausalLM"
    ),
    "granite-speech": granite_speech({}, {}),
    "granite-speech-odd": granite_speech(
        {"num_layers": 2, "dim_head": 8, "conv_kernel_size": 6, "conv_expansion_factor": 1},
        {"hidden_size": 40, "num_hidden_layers": 3, "cross_attention_frequency": 2},
    ),
    "qwen2-audio": HearingCase(
        "Qwen2Audio",
        {
            "text_config": TEXT | {"model_type": "qwen2", "hidden_size": 96},
            "audio_config": {
                "num_mel_bins": BINS,
                "encoder_layers": 3,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
                "d_model": 48,
                "max_source_positions": 50,
                "initializer_range": 0.2,
            },
            "audio_token_index": PLACEHOLDER,
        },
        LogMel(
            sampling_rate=RATE, bins=BINS, n_fft=400, hop=160, seconds=1, row_frames=4, cut=True
        ),
    ),
    "voxtral": HearingCase(
        "Voxtral",
        {
            "text_config": TEXT | {"model_type": "llama", "head_dim": 16},
            "audio_config": {
                "num_mel_bins": BINS,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 192,
                "hidden_size": 48,
                "max_source_positions": 100,
                "initializer_range": 0.2,
            },
            "audio_token_id": PLACEHOLDER,
        },
        LogMel(
            sampling_rate=RATE, bins=BINS, n_fft=400, hop=160, seconds=2, row_frames=8, many=True
        ),
    ),
    "qwen2.5-omni": HearingCase(
        "Qwen2_5OmniThinker",
        OMNI_2_5
        | {"audio_token_index": PLACEHOLDER, "image_token_index": 999, "video_token_index": 999},
        LogMel(
            sampling_rate=RATE,
            bins=BINS,
            n_fft=400,
            hop=160,
            seconds=2,
            row_frames=4,
            cut=True,
            exact=True,
        ),
    ),
    "qwen3-omni": HearingCase(
        "Qwen3OmniMoeThinker",
        {
            "text_config": OMNI_TEXT,
            "vision_config": OMNI_TOWER,
            "audio_config": OMNI_HEARS,
            "audio_token_id": PLACEHOLDER,
            "image_token_id": 999,
            "video_token_id": 999,
        }
        | AROUND,
        BlockMel(
            sampling_rate=RATE, bins=BINS, n_fft=400, hop=160, block=100, least=400, seconds=2
        ),
    ),
    "qwen3-asr": HearingCase(
        "Qwen3ASR",
        {
            "text_config": TEXT | {"model_type": "qwen3", "hidden_size": 96, "head_dim": 16},
            "audio_config": {
                "num_mel_bins": BINS,
                "encoder_layers": 2,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
                "d_model": 48,
                "n_window_infer": 200,
                "downsample_hidden_size": 8,
                "output_dim": 96,
                "initializer_range": 0.2,
            },
            "audio_token_id": PLACEHOLDER,
        },
        BlockMel(
            sampling_rate=RATE, bins=BINS, n_fft=400, hop=160, block=100, least=800, seconds=2
        ),
    ),
}
