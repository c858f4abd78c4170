"""One reader of a family's facts for both formats: a source answers from config.json of a hub
folder, or from the metadata and the tensors' names of a GGUF file.

What both say has one method. Names and defaults are those of config.json; what a GGUF file names
differently, or lacks, is stated in the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.families import hub_reading as hub
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.hub_reading import Activation
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.rope_spec import RopeSpec

T = TypeVar("T", int, float)
QUERY, OUTPUT, UP = "attn_q", "attn_output", "ffn_up"
"""GGUF's names of modules whose biases stand for those of all that are read with them."""


@dataclass(frozen=True)
class HubSource:
    """config.json. Raises UnsupportedModel for settings that aren't served."""

    fields: Fields

    def activation(
        self, *allowed: Activation, key: str = "hidden_act", default: str = "silu"
    ) -> Activation:
        """The feed-forward's, which must be one of `allowed`. A GGUF file doesn't say: there it is
        the first of them."""
        return hub.activation(self.fields, *allowed, key=key, default=default)

    def only(self, **served: object) -> None:
        """Refuses other values of settings that config.json alone has."""
        hub.only(self.fields, **served)

    def ignore(self, *keys: str) -> None:
        """Passes over settings that config.json alone has, and that mean nothing here."""
        self.fields.ignore(*keys)

    def sizes(self, *, head_dim: int | None = None, tied: bool = False) -> dict[str, Any]:
        """Fields of ModelConfig: sizes, and whether embedding and head are tied. head_dim, tied:
        where config.json doesn't say; None: hidden size / heads."""
        return hub.sizes(self.fields, default_head_dim=head_dim, tied=tied)

    def eps(self, default: float = 1e-6, key: str = "rms_norm_eps") -> float:
        """Epsilon of RMS norms."""
        return self.fields.number(key, default)

    def layer_norm_eps(self, default: float = 1e-5, key: str = "layer_norm_eps") -> float:
        return self.fields.number(key, default)

    def rope(self, head_dim: int, theta: float = 10_000.0, share: float | None = None) -> RopeSpec:
        """The rotation in all layers. theta, share: as hub_reading.rope has them."""
        return hub.rope(self.fields, head_dim, theta=theta, share=share)

    def bias(self, module: str, key: str = "attention_bias", default: bool | None = False) -> bool:
        """Whether a module has a bias: as config.json says by `key`, or where a GGUF file's first
        layer has one. module: GGUF's name of it."""
        return self.fields.flag(key, default)

    def flag(self, key: str, default: bool, gguf: str = "", without: bool | None = None) -> bool:
        """A setting that GGUF files have under the name `gguf`, if one is given. without: its value
        where they don't say it; None: `default`."""
        return self.fields.flag(key, default)

    def integer(
        self, key: str, default: int | None = None, gguf: str = "", without: int | None = None
    ) -> int:
        """A setting that GGUF files have under the name `gguf`, if one is given. without: its value
        where they don't say it; None: they must, and it is `default` where there is no name."""
        return self.fields.integer(key, default)

    def number(
        self, key: str, default: float | None = None, gguf: str = "", without: float | None = None
    ) -> float:
        """A setting, as `integer` has it."""
        return self.fields.number(key, default)

    def expert_counts(self, key: str = "num_experts", newer: str = "") -> dict[str, Any]:
        """Fields of ExpertsSpec: how many there are, and how many a token has."""
        return hub.expert_counts(self.fields, key, newer)

    def window(self) -> int | None:
        """Tokens that every layer sees, or those with a window; None: all."""
        return hub.window(self.fields) if "sliding_window" in self.fields else None

    def windows_behind(self, count: int) -> list[int | None]:
        """Each layer's window, where config.json has them after the first layers (Qwen). GGUF files
        say nothing of it, and no release has it."""
        return hub.windows_behind(self.fields, count)

    def sparse_layers(self, count: int) -> list[bool]:
        """Whether each layer has experts, as hub_reading.sparse_layers has it; in GGUF files all
        have."""
        return hub.sparse_layers(self.fields, count)


@dataclass(frozen=True)
class GGUFSource:
    """A GGUF file. Methods are those of HubSource."""

    model: GGUFMetadata

    @property
    def fields(self) -> Fields:
        return self.model.keys

    def activation(self, *allowed: Activation, key: str = "", default: str = "") -> Activation:
        return allowed[0]

    def only(self, **served: object) -> None:
        pass

    def ignore(self, *keys: str) -> None:
        pass

    def sizes(self, *, head_dim: int | None = None, tied: bool = False) -> dict[str, Any]:
        return self.model.sizes()

    def eps(self, default: float = 0.0, key: str = "") -> float:
        return self.model.rms_eps()

    def layer_norm_eps(self, default: float = 0.0, key: str = "") -> float:
        return self.model.layer_norm_eps()

    def rope(self, head_dim: int, theta: float = 0.0, share: float | None = None) -> RopeSpec:
        return self.model.rope(head_dim)

    def bias(self, module: str, key: str = "", default: bool | None = False) -> bool:
        return self.model.has(f"{module}.bias")

    def flag(self, key: str, default: bool, gguf: str = "", without: bool | None = None) -> bool:
        usual = default if without is None else without
        return self.fields.flag(gguf, usual) if gguf else usual

    def integer(
        self, key: str, default: int | None = None, gguf: str = "", without: int | None = None
    ) -> int:
        return self.fields.integer(gguf, without) if gguf else _usual(key, default, without)

    def number(
        self, key: str, default: float | None = None, gguf: str = "", without: float | None = None
    ) -> float:
        return self.fields.number(gguf, without) if gguf else _usual(key, default, without)

    def expert_counts(self, key: str = "", newer: str = "") -> dict[str, Any]:
        return self.model.expert_counts()

    def window(self) -> int | None:
        return self.model.window()

    def windows_behind(self, count: int) -> list[int | None]:
        return [None] * count

    def sparse_layers(self, count: int) -> list[bool]:
        return [True] * count


def _usual(key: str, default: T | None, without: T | None) -> T:
    """What a setting is that GGUF files don't have."""
    found = default if without is None else without
    if found is None:
        raise TypeError(f"what {key} is in GGUF files isn't said")
    return found


def dense_first(
    attention: AttentionSpec, experts: ExpertsSpec | None, dense: int, count: int
) -> list[LayerSpec]:
    """Returns so many layers, of which the first `dense` have no experts."""
    plain = LayerSpec(attention=attention)
    sparse = LayerSpec(attention=attention, feed_forward=FeedForwardSpec(experts=experts))
    return [plain if number < dense else sparse for number in range(count)]


Source = HubSource | GGUFSource
Reader = Callable[[Source], ModelConfig]


def of_hub(read: Reader) -> Callable[[Fields], ModelConfig]:
    """A family's `read_hub`, of its one reader."""
    return lambda fields: read(HubSource(fields))


def of_gguf(read: Reader) -> Callable[[GGUFMetadata], ModelConfig]:
    """A family's `read_gguf`, of its one reader."""
    return lambda model: read(GGUFSource(model))


def decoder(
    source: Source,
    name: str,
    sizes: dict[str, Any],
    layers: Iterable[LayerSpec],
    *,
    eps: float = 1e-6,
    norm: NormSpec | None = None,
    theta: float = 10_000.0,
    share: float | None = None,
    rope: RopeSpec | None = None,
    ropes: tuple[RopeSpec, ...] | None = None,
    **further: Any,
) -> ModelConfig:
    """Returns the model. eps, theta, share: of RMS norms and of the one rotation, where config.json
    doesn't say. norm, rope, ropes: in the place of these. layers: all of them, or one that holds
    for all. further: other fields of ModelConfig."""
    if ropes is None:
        ropes = (rope or source.rope(sizes["head_dim"], theta, share),)
    return ModelConfig(
        architecture=name,
        **sizes,
        norm=norm or NormSpec(eps=source.eps(eps)),
        ropes=ropes,
        layers=hub.shared(layers),
        **further,
    )
