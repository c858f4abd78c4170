"""The normalised description of a model: its sizes and layers.

`penstock.prepare` fills these structs once, from a hub folder's config.json or from a GGUF file's
metadata; nothing else parses either format.  Nothing here imports a heavy library.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.attention_spec import AttentionSpec, IndexSpec, KVHeadsSpec, LatentSpec
from penstock.model.audio_spec import AudioSpec
from penstock.model.block_index_spec import BlockIndexSpec
from penstock.model.disentangled_spec import DisentangledSpec
from penstock.model.layer_spec import (
    CrossAttentionSpec,
    HyperConnectionsSpec,
    LayerSpec,
    NormSpec,
    PerLayerInputsSpec,
    StreamsSpec,
)
from penstock.model.rope_spec import RopeSpec
from penstock.model.tower_spec import VisionSpec


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="decoder"):
    """Shapes and constants of a transformer's decoder. Sizes are element counts."""

    architecture: str
    """The family's name: a key of penstock.families.FAMILIES."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm: NormSpec
    """The norm in all layers, and after the last."""
    ropes: tuple[RopeSpec, ...]
    """Rotations, from which each layer chooses by index."""
    layers: tuple[LayerSpec, ...] = (LayerSpec(),)
    """The layers: a spec for each of them, or one that holds for all."""
    tie_word_embeddings: bool = False
    embedding_multiplier: float = 1.0
    logits_multiplier: float = 1.0
    logits_soft_cap: float | None = None
    """Logits x become soft_cap * tanh(x / soft_cap)."""
    head_bias: bool = False
    embedding_norm: bool = False
    """Whether embeddings are normalised before the first layer."""
    per_layer_inputs: PerLayerInputsSpec | None = None
    streams: StreamsSpec | None = None
    """The parallel residual streams; None for one ordinary residual."""
    hyper_connections: HyperConnectionsSpec | None = None
    """The residuals that each layer mixes; None for one ordinary residual."""
    vision: VisionSpec | None = None
    """The vision tower and its projector; None for a model that takes no pictures."""
    audio: AudioSpec | None = None
    """The audio tower and its projector; None for a model that takes no sounds."""
    cross_attention: CrossAttentionSpec | None = None
    """Attention of an encoder-decoder model's layers to its encoder's output; None: there is no
    encoder that layers attend to."""
    learned_positions: int = 0
    """Rows of a table of positions, one for each token of the decoder, which are added to
    embeddings; 0: there is no table."""
    first_position: int = 0
    """Further rows of that table, before the one of the first token (RoBERTa's padding id)."""
    token_types: int = 0
    """Rows of a table of token types, which are added to embeddings; 0: there are no types."""
    embedding_size: int = 0
    """Numbers of an embedding, of which a product makes those of the layers' rows; 0: an embedding
    is such a row."""
    final_norm: bool = True
    """Whether there is a norm after the last layer."""
    relative_buckets: int = 0
    """Buckets of distances, each of which adds a number of each head's own to scores (MPNet); 0:
    there are none. This and what follows is of encoders."""
    distance_slopes: bool = False
    """Whether a score falls with the distance, in each head by a slope of its own (ALiBi)."""
    disentangled: DisentangledSpec | None = None
    """What attention has to say about distances; None: nothing."""

    @property
    def takes_media(self) -> bool:
        return self.vision is not None or self.audio is not None

    @property
    def row_of_embedding(self) -> int:
        """Numbers of an embedding."""
        return self.embedding_size or self.hidden_size

    @property
    def row_size(self) -> int:
        """Numbers that stand in a token's place, of an item of media."""
        return self.hidden_size

    @property
    def media_width(self) -> int:
        """Numbers of a row of an encoded item."""
        return self.hidden_size if self.vision is None else self.vision.row_width(self.hidden_size)

    @property
    def latent(self) -> LatentSpec | None:
        """What all layers' keys and values are made of; None: they are stored by themselves."""
        return self.layers[0].attention.latent

    @property
    def value_in_key(self) -> int | None:
        """A value is the last so many numbers of its key; None: it is stored by itself."""
        if self.layers[0].attention.compressed is not None:
            return self.head_dim
        return None if self.latent is None else self.latent.rank

    @property
    def is_like_bert(self) -> bool:
        """Whether a norm follows each sum with the residual, as in BERT and its relatives."""
        return self.layers[0].order == "summed"

    @property
    def index(self) -> IndexSpec | BlockIndexSpec | None:
        """What chooses tokens, or blocks, that attention reads in layers with an index."""
        rules = (layer.attention for layer in self.layers)
        return next((own.index or own.blocks for own in rules if own.index or own.blocks), None)

    @property
    def attention_inputs(self) -> int:
        """Numbers that queries, keys and values are made of."""
        return self.hidden_size

    @property
    def embedding_rows(self) -> int:
        return self.vocab_size

    @property
    def encoder_rows(self) -> int:
        """Tokens at the beginning of every sequence that stand for the encoder's output."""
        return 0 if self.cross_attention is None else self.cross_attention.rows

    @property
    def pictures_apart(self) -> bool:
        """Whether rows of pictures go through no layer, and are seen in some layers alone."""
        return any(layer.attention.sees_pictures for layer in self.layers)

    def layer(self, number: int) -> LayerSpec:
        """What layer `number` is made of, counted from 0."""
        return self.layers[number if len(self.layers) > 1 else 0]

    def query_heads(self, number: int) -> int:
        """How many query heads layer `number` has."""
        return self.layer(number).attention.query_heads or self.num_heads

    def kv_heads(self, number: int) -> KVHeadsSpec:
        """The key and value heads of layer `number`."""
        own = self.layer(number).attention.kv_heads
        return own or KVHeadsSpec(count=self.num_kv_heads, size=self.head_dim)

    def ignores_spans(self, attention: AttentionSpec) -> bool:
        """Whether a picture's rows see none after them in a layer with such attention, though in
        others they do."""
        vision = self.vision
        return vision is not None and vision.windowed_spans and attention.window is None

    def inner(self, number: int) -> int:
        """The inner dimension of the feed-forward of layer `number`."""
        return self.layer(number).feed_forward.inner or self.intermediate_size


class TransformersConfig(ModelConfig, frozen=True, kw_only=True, tag="transformers"):
    """A decoder that no family describes: transformers' own code computes it. `architecture` is
    the name of its class. Norm, ropes and layers say nothing here; sizes are what config.json
    says of them, and are compared with the layers when the model is loaded."""

    settings: str
    """config.json as it is."""


class HeadConfig(ModelConfig, frozen=True, kw_only=True, tag="head"):
    """What drafts for a model: it reads what that model's layers give, and is no model by itself.
    One layer, or, where it `borrows`, any number. `vocab_size` is that of its logits. Sizes are
    element counts."""

    served_vocab: int
    """Ids of the model that it drafts for, and rows of the embedding."""
    served_hidden: int
    """Hidden size of that model."""
    aux_layers: tuple[int, ...] = ()
    """Numbers of the target model's layers after which the head reads hidden states; empty for
    EAGLE-3's default."""
    beside: bool = False
    """Whether its attention reads the embedding and the hidden state side by side (EAGLE-3);
    else a product joins both in front of the layer (DeepSeek-V3)."""
    normed_residual: bool = False
    """Whether the residual begins with the hidden state's norm, where `beside` is set."""
    normed_result: bool = False
    """Whether further drafts are made of its norm's output (Qwen3-Next); else of that norm's
    input."""
    normed_input: bool = True
    """Whether the product reads what the model's last norm gives (DeepSeek-V3); else what that norm
    reads (Step 3.5)."""
    hidden_first: bool = False
    """Whether the product reads the hidden state in front of the embedding (MiMo)."""
    chained: bool = True
    """Whether a further layer reads what the layer before it gives (DeepSeek-V3); else all read
    what the served model gives (MiMo-V2)."""
    borrows: bool = False
    """Whether its layers store nothing, and attend to keys and values of the served model's layers
    (Gemma 4's assistant). Which ones depends on that model: see AttentionSpec.reads."""
    id_groups: int = 0
    """Groups that a head that borrows has all ids in; 0: it has none."""
    likeliest_groups: int = 0
    """How many of these groups, the likeliest, ids are drafted of."""

    @property
    def attention_inputs(self) -> int:
        return 2 * self.hidden_size if self.beside else self.hidden_size

    @property
    def hidden_numbers(self) -> int:
        """Numbers of a hidden state that it reads: of all residuals, where layers mix several."""
        mixed = self.hyper_connections
        return self.hidden_size * (1 if mixed is None else mixed.count)

    @property
    def embedding_rows(self) -> int:
        return self.served_vocab


class SharedSpace(msgspec.Struct, frozen=True, kw_only=True):
    """How a model makes vectors of pictures and of texts that lie in one space (Radford et al.,
    "CLIP", 2021). An input is a text, or one picture."""

    size: int
    """Numbers of a vector."""
    vision: VisionSpec | None
    """What makes the vector of a picture: its one row. None: it is left out."""
    token: Literal["last", "end", "highest"] = "last"
    """The token whose hidden state a text's vector is computed from: the last one, the first
    `end_token` (the last one if there is none), or the one with the highest id."""
    end_token: int = 0
    bias: bool = False
    """Whether that product has a bias."""
    padded: bool = False
    """Whether texts are filled up to `max_position` with the tokenizer's padding token, which is
    seen as any other."""


class EncoderConfig(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="encoder"):
    """An encoder: returns vectors of tokens with bidirectional attention. It has no KV cache."""

    layers: ModelConfig
    """The layers, whose `architecture` is a key of penstock.families.ENCODERS. A window counts in
    both directions."""
    head_bias: bool = True
    """Whether the inner layer of the classification head has a bias."""
    causal: bool = False
    """Whether tokens see those before them only."""
    space: SharedSpace | None = None
    """Where pictures have vectors, too; what else is said here is of the texts. None: the model
    takes no pictures."""
    shared_layers: tuple[str, ...] = ()
    """For each layer what files call its weights, where several share some (see LayerSpec.repeats);
    empty: each has its own, called by its number."""

    @property
    def family(self) -> str:
        return self.layers.architecture

    @property
    def vocab_size(self) -> int:
        return self.layers.vocab_size

    @property
    def hidden_size(self) -> int:
        return self.layers.hidden_size

    @property
    def num_layers(self) -> int:
        return self.layers.num_layers

    @property
    def max_position(self) -> int:
        return self.layers.max_position

    @property
    def vision(self) -> VisionSpec | None:
        return None if self.space is None else self.space.vision

    @property
    def row_size(self) -> int:
        return self.layers.hidden_size if self.space is None else self.space.size

    @property
    def audio(self) -> AudioSpec | None:
        return None

    @property
    def takes_media(self) -> bool:
        return self.vision is not None

    @property
    def media_width(self) -> int:
        return self.row_size

    @property
    def encoder_rows(self) -> int:
        return 0
