"""manifest.json of a prepared folder: what every process reads of a model."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.errors import StartupError, UnsupportedModel
from penstock.model.config import EncoderConfig, HeadConfig, ModelConfig, TransformersConfig
from penstock.model.media_facts import MediaFacts
from penstock.model.pooling_config import PoolingConfig
from penstock.model.quantised_checkpoint import QuantisedCheckpoint


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What holds where a request is silent: the checkpoint's own generation_config, or what the
    settings put in its place (see penstock.request.generation_config). None: not stated."""

    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    """Output tokens."""
    suppress_tokens: tuple[int, ...] = ()
    """Ids that no output holds, whatever a request says; like EOS ids the model's own always."""


class WeightFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Where the tensors lie. Absolute paths; several files when sharded."""

    format: Literal["gguf", "safetensors"]
    files: tuple[str, ...]
    dtype: str
    """The checkpoint's own: `float32`, `bfloat16`, `float16`, or the name of a quantisation."""
    mmproj: str = ""
    """A separate GGUF file with the model's towers (mmproj); empty: there is none."""
    quantised: QuantisedCheckpoint | None = None
    """How a safetensors checkpoint's matrices are quantised; None if they aren't."""
    tower: str = ""
    """The model family by whose names the tensors of the towers are called; empty: a model that is
    nothing but a tower, or an mmproj file."""
    size: int = 0
    """Bytes of all tensors; 0: prepared by an older release."""
    numbers: int = 0
    """Values in all tensors; 0: packed in a way that hides how many, or as above."""
    mixture: str = ""
    """The mixture of types that a GGUF file says it has, such as Q4_K_M; empty: it doesn't say."""


class PreparedModel(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json of a prepared folder, which also holds tokenizer.json and
    chat_template.jinja."""

    format_version: int
    name: str
    """The name that requests use unless --served-model-name says otherwise."""
    source: str
    """What the user asked for, resolved: a hub id or an absolute path."""
    config: ModelConfig | TransformersConfig | HeadConfig | EncoderConfig
    generation: GenerationDefaults
    weights: WeightFiles
    digest: str
    """sha256 (hex) over config, tokenizer, template and the identity of the weight files."""
    has_chat_template: bool
    add_bos: bool = False
    """Whether a plain prompt gets the BOS token in front."""
    pooling: PoolingConfig | None = None
    """How the model gives vectors or classes; None: it generates text."""
    media: MediaFacts | None = None
    """How pictures, sounds and videos are prepared; None: the model takes no media."""
    contents: dict[str, str] = {}
    """sha256 (hex) of the folder's other files, by name."""
    family_module: str = ""
    """The module that defines a decoder's family; empty: all are looked through."""
    samples: dict[str, str] = {}
    """sha256 (hex) of samples of each file that weights are read from, by its path."""

    @property
    def family(self) -> str:
        """What the layers are: `llama`, `bert`, …"""
        config = self.config
        return config.family if isinstance(config, EncoderConfig) else config.architecture

    @property
    def encoder_rows(self) -> int:
        """Tokens at the beginning of every sequence that stand for the encoder's output."""
        return self.config.encoder_rows

    def check_encoder_cache(self, rows: int | None) -> None:
        """Raises StartupError where so many rows of encodings hold none of the items that prompts
        begin with. rows: the setting encoder_cache_rows; None: it isn't set."""
        if rows is not None and rows < self.encoder_rows:
            raise StartupError(
                f"encoder_cache_rows is {rows}; each prompt of {self.name} begins with"
                f" {self.encoder_rows} encoder rows, so at least {self.encoder_rows} are needed"
            )

    @property
    def decoder(self) -> ModelConfig:
        """The config of a model that generates. Raises UnsupportedModel for an encoder."""
        if isinstance(self.config, EncoderConfig):
            raise UnsupportedModel(
                f"{self.name} is an encoder ({self.family}), which gives no text"
            )
        if isinstance(self.config, HeadConfig):
            method = "mtp" if self.config.borrows else "eagle3"
            raise UnsupportedModel(
                f"{self.name} is a head, which drafts for a model: serve that one with "
                f'--speculative-config \'{{"method": "{method}", "model": …}}\''
            )
        return self.config
