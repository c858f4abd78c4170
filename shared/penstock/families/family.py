"""What the system must know of a family of models: decoders, with the draft heads in their own
checkpoints (method mtp), encoders, and models with vision or audio towers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from penstock.errors import UnsupportedModel
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.tensor_names import FUSED_QKV, OUR_NAMES, TensorNames, bert_names
from penstock.families.tower_names import TowerNames
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.layer_spec import LayerSpec

JOIN = "eh_proj"
"""Our name of the product that joins embedding and hidden state."""
OF_EMBEDDING, OF_HIDDEN = "e_proj", "h_proj"
"""Our names of its halves, where they are two products."""


@dataclass(frozen=True)
class OwnHead:
    """The draft head of a family's checkpoints: one or several layers, mostly like the model's last
    attention layer, and its other tensors. Embedding and output head are the model's where a layer
    has none of its own. `{}` stands for a layer's number in all names."""

    layer: str
    """What the names of a layer's tensors begin with."""
    modules: Mapping[str, str]
    """The file's name of a module that is in no model's layer -> ours. Without a number, all of the
    head's layers have it in common."""
    behind_the_last: bool = False
    """Whether the head's layers are counted on after the model's; else from 0."""
    normed_result: bool = False
    """Whether further drafts are made of the output of the head's norm (see HeadConfig)."""
    hidden_first: bool = False
    """Whether the product that joins reads the hidden state in front of the embedding."""
    chained: bool = True
    """Whether a further layer reads what the layer before it gives (see HeadConfig)."""
    normed_input: bool = True
    """Whether it reads the model's residual after the model's last norm (see HeadConfig)."""
    spec: Callable[[ModelConfig], LayerSpec] | None = None
    """Says what each layer is, in a model; None: as the model's last one that attends. Raises
    UnsupportedModel."""

    @property
    def common(self) -> frozenset[str]:
        """Our names of weights that all of the head's layers have in common."""
        named = self.modules.items()
        return frozenset(f"{ours}.weight" for theirs, ours in named if "{}" not in theirs)

    def join(self, layers: int, draft: int = 0) -> str:
        """The file's name of the product that joins embedding and hidden state, or of its half for
        the hidden state, of one of the head's layers in the checkpoint of a model of so many
        layers."""
        named = self.modules.items()
        theirs = next(theirs for theirs, ours in named if ours in (JOIN, OF_HIDDEN))
        return theirs.format(self._number(layers, draft))

    def begins(self, layers: int, draft: int) -> str:
        """What the names of the tensors of one of the head's layers begin with."""
        return self.layer.format(self._number(layers, draft))

    def our_name(self, name: str, layers: int, draft: int = 0) -> str | None:
        """Maps a tensor's name in the checkpoint of a model of so many layers to ours in one of the
        head's layers, but for those of the layer itself, which stay as the family's files have
        them. None: it belongs to something else."""
        module, _, kind = name.rpartition(".")
        number = self._number(layers, draft)
        for theirs, ours in self.modules.items():
            if module == theirs.format(number):
                return f"{ours}.{kind}"
            if name == theirs.format(number):
                return ours  # of a tensor that isn't called a weight
        begins = self.begins(layers, draft)
        if name.startswith(begins):
            return f"layers.0.{name.removeprefix(begins)}"
        around, _, _ = self.layer.partition("layers.{}.")
        own = name.removeprefix(around)
        unknown = around and own != name and not own.startswith("layers.")
        return own if unknown else None

    def file_name(self, name: str, layers: int, draft: int = 0) -> str:
        """Maps our name of a tensor in one of the head's layers to the checkpoint's: what our_name
        does, the other way."""
        number, (module, _, kind) = self._number(layers, draft), name.rpartition(".")
        for theirs, ours in self.modules.items():
            if ours in (module, name):
                return theirs.format(number) + (f".{kind}" if ours == module else "")
        own = name.removeprefix("layers.0.")
        return name if own == name else f"{self.begins(layers, draft)}{own}"

    def _number(self, layers: int, draft: int) -> int:
        return layers + draft if self.behind_the_last else draft


LAYER_BEHIND_THE_LAST = OwnHead(
    "layers.{}.",
    {
        "layers.{}.enorm": "enorm",
        "layers.{}.hnorm": "hnorm",
        "layers.{}.eh_proj": JOIN,
        "layers.{}.embed_tokens": "embed_tokens",
        "layers.{}.shared_head.head": "lm_head",
        "layers.{}.shared_head.norm": "norm",
        **{f"layers.{{}}.hc_head.{part}": f"hc_head.{part}" for part in ("fn", "base", "scale")},
    },
    behind_the_last=True,
)
"""The head of DeepSeek-V3 and GLM-4.5, and of GGUF files of any family (DeepSeek-AI, "DeepSeek-V3
technical report", 2024, section 2.2)."""

BESIDE_THE_LAYERS = OwnHead(
    "mtp.layers.{}.",
    {
        "mtp.pre_fc_norm_embedding": "enorm",
        "mtp.pre_fc_norm_hidden": "hnorm",
        "mtp.fc": JOIN,
        "mtp.embed_tokens": "embed_tokens",
        "mtp.norm": "norm",
    },
    normed_result=True,
)
"""The head of Qwen3-Next and Qwen3.5, whose layers have all but themselves in common (Qwen team,
"Qwen3-Next", 2025; what it computes, as vLLM's models qwen3_next_mtp and qwen3_5_mtp have it)."""

LAYERS_OF_THEIR_OWN = OwnHead(
    "mtp_layers.{}.",
    {
        "mtp_layers.{}.token_layernorm": "enorm",
        "mtp_layers.{}.hidden_layernorm": "hnorm",
        "mtp_layers.{}.input_proj": JOIN,
        "mtp_layers.{}.final_layernorm": "norm",
    },
    normed_result=True,
    hidden_first=True,
)
"""The head of MiMo (Xiaomi, "MiMo: unlocking the reasoning potential of language model", 2025; what
it computes, as vLLM's model mimo_mtp has it)."""


@dataclass(frozen=True)
class Family:
    """A family of decoders: how its files say what ModelConfig says."""

    name: str
    """ModelConfig.architecture."""
    hub_classes: tuple[str, ...]
    """Names in `architectures` of a hub folder's config.json."""
    known_as: str
    """What people call its models, with commas."""
    read_hub: Callable[[Fields], ModelConfig]
    """Reads config.json. Raises UnsupportedModel for a variant that isn't served."""
    gguf: str | None = None
    """`general.architecture` of GGUF files; None: they aren't served."""
    gguf_also: tuple[str, ...] = ()
    """Further ones, of variants of the family."""
    read_gguf: Callable[[GGUFMetadata], ModelConfig] | None = None
    hub_names: TensorNames = OUR_NAMES
    gguf_names: TensorNames = OUR_NAMES
    unserved: frozenset[str] = frozenset()
    """Settings of config.json that change what the family's models compute, and that nothing here
    computes. Any other setting that `read_hub` doesn't ask for is one that they don't read."""
    own_head: OwnHead = LAYER_BEHIND_THE_LAST
    """The head that drafts in safetensors files that have one. In GGUF files it stands after the
    last layer."""


class ClassifierHead(NamedTuple):
    """Tensors of a classification head over an input's vector, and what lies between its layers."""

    inner: str
    outer: str
    activation: Literal["tanh", "relu", "gelu"]
    norm: str = ""
    """A layer norm after the activation."""
    pooled: Literal["cls", "mean"] = "cls"
    """What it sees of the tokens, where a file can't say so."""


class WordHead(NamedTuple):
    """Tensors of the head that fills in masked words: a product, a layer norm, and the words'
    matrix, which is the embedding where the file has none. bias: of the words, or what holds it.
    activation: between product and norm; empty: that of the layers."""

    dense: str
    norm: str
    words: str
    bias: str = ""
    activation: str = ""


@dataclass(frozen=True)
class EncoderFamily:
    """A family is BERT but for what is said here."""

    name: str
    """EncoderConfig.family, and what a checkpoint may put in front of its tensors' names."""
    model_types: tuple[str, ...]
    """Values of `model_type` in config.json."""
    prefixes: tuple[str, ...] = ()
    """What else a checkpoint may put there."""
    head: ClassifierHead | None = None
    token_head: str = "classifier"
    """The one layer that classifies tokens; empty: `head` does."""
    words: WordHead | None = None
    both_ways_key: str = ""
    """A flag of config.json without which a model of this type is a decoder."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """config.json's own names for keys that BERT's has."""
    first_behind_padding: bool = False
    """Whether positions count from the number after the padding token's id."""
    token_types: int = 0
    """How many there are where config.json doesn't say; 0: the family has none."""
    relative_buckets: int = 0
    """Buckets of the relative attention bias, where config.json doesn't say; 0: the family has
    none."""
    read_layers: Callable[[Fields], EncoderConfig] | None = None
    """Reads config.json of a family with keys of its own. Raises UnsupportedModel."""
    read_halves: Callable[[Fields, Fields, Fields], EncoderConfig] | None = None
    """Reads config.json of a family that takes pictures, too: the file as a whole, and its sections
    about texts and about pictures. Raises UnsupportedModel."""
    layer_names: TensorNames = field(default_factory=bert_names)
    """Names of the tensors in safetensors files."""
    gguf: str = ""
    """`general.architecture` of its GGUF files, if they aren't BERT's; empty: they aren't
    served."""
    gguf_also: tuple[str, ...] = ()
    """Further ones, of variants of the family."""
    read_gguf: Callable[[GGUFMetadata], EncoderConfig] | None = None
    """Reads the metadata of such a file. Raises UnsupportedModel."""
    gguf_names: TensorNames = FUSED_QKV
    unserved: frozenset[str] = frozenset()
    """Settings that change what is computed, and that nothing here computes (see Family)."""


TEXT = "text_config"


@dataclass(frozen=True)
class TextHalf:
    """A decoder that stands after a tower."""

    family: Family
    """The decoder's family."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """What transformers' class of configurations has where config.json says nothing: a file that
    was made with an older release says only what differs from it."""
    nulls: bool = False
    """Whether a null in the decoder's settings says something: else it is as if it were missing."""


@dataclass(frozen=True)
class TowerFamily:
    """A family of models with a tower: how their files describe it."""

    name: str
    hub_classes: tuple[str, ...]
    """What config.json calls them."""
    known_as: str
    """The family's name for people."""
    halves: Mapping[str, TextHalf]
    """Decoders by the model_type of the section about them."""
    read: Callable[[Fields, Fields, ModelConfig], Any]
    """Reads config.json as a whole, and its section about the tower; the decoder is known already.
    Raises UnsupportedModel for a tower that isn't served."""
    usual: str
    """The model_type where config.json says none."""
    flat: Callable[[Fields], Fields] | None = None
    """Returns the decoder's settings of a config.json without a section about it."""
    harmless: frozenset[str] = frozenset()
    """Keys of config.json outside the two sections that change nothing here."""
    ignored: tuple[str, ...] = ()
    """Keys of the decoder's section that change nothing here."""
    hub_names: TowerNames = field(default_factory=dict)
    """Names of the tensors of tower and projector in the hub's files."""
    begins_with_bos: bool = False
    """Whether the makers' processor puts BOS in front of every prompt, a chat's too, although
    neither tokenizer.json nor the chat template does."""

    SECTION: ClassVar[str]
    """Name of config.json's section about the tower."""
    PART: ClassVar[str]
    """The field of ModelConfig that holds what is read."""

    def text_half(self, fields: Fields) -> tuple[TextHalf, Fields]:
        """Returns the decoder and its settings. Raises UnsupportedModel for one that isn't served
        after this tower."""
        section = fields.section(TEXT)
        if not section.values and self.flat is not None:
            section = self.flat(fields)
        kind = section.text("model_type", self.usual)
        half = self.halves.get(kind)
        if half is None:
            raise UnsupportedModel(
                f"{section.where}: model_type {kind[:80]!r} is not served behind the tower of "
                f"{self.known_as}; {', '.join(self.halves)} are"
            )
        if not half.nulls:
            section = section.completed(**half.defaults)
        section.ignore(*self.ignored)
        return half, section
