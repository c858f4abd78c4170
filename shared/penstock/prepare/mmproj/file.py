"""An mmproj file's keys, and the tokens of the model that it belongs to.

Source of the keys and names: llama.cpp's converter, and gguf's constants. How media are prepared is
mostly not in the file: it is what the family's processor does in transformers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from penstock.errors import UnsupportedModel
from penstock.families.vision.reading import MAX_PATCH, MAX_PIXELS, MAX_WIDTH, bounded, heads
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile
from penstock.forms.pixels import Colour, Pixels
from penstock.forms.registry import ImagePreparation
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts, MediaKind
from penstock.model.tower_spec import TowerSpec
from penstock.text.tokenizer import Tokenizer

MAX_LAYERS = 256
MAX_ROWS = 65_536

Kinds = dict[MediaKind, KindFacts]


class MmprojFile(NamedTuple):
    """keys: those of the part that is read (clip.vision, clip.audio), without that in front."""

    file: GGUFFile
    keys: Fields
    text: ModelConfig

    def activation(self, gelu: str) -> Any:
        """gelu: what use_gelu means in this family."""
        flags = Fields(self.file.metadata, str(self.file.path))
        silu, is_gelu = (flags.flag(f"clip.use_{each}", False) for each in ("silu", "gelu"))
        if silu and is_gelu:
            raise flags.wrong("clip.use_silu", "false, beside clip.use_gelu,")
        if silu:
            return "silu"
        return gelu if is_gelu else "quick_gelu"

    def tower(
        self, norm: str, *, eps: float | None = None, inner: int = 0, **parts: Any
    ) -> TowerSpec:
        """norm: rms or layer.  eps: None: as the file says.  inner: the feed-forward's
        size; 0: as the file says."""
        keys = self.keys
        hidden = self.hidden_size()
        if eps is None:
            eps = self.norm_eps()
        return TowerSpec(
            hidden_size=hidden,
            intermediate_size=inner or bounded(keys, "feed_forward_length", MAX_WIDTH),
            num_heads=heads(keys, "attention.head_count", hidden),
            num_layers=self.num_layers(),
            patch=bounded(keys, "patch_size", MAX_PATCH),
            norm=NormSpec(
                kind="rms" if norm == "rms" else "layer",
                eps=eps,
                bias=norm != "rms",
            ),
            **parts,
        )

    def norm_eps(self) -> float:
        return as_written(self.keys.number("attention.layer_norm_epsilon"))

    def hidden_size(self) -> int:
        return bounded(self.keys, "embedding_length", MAX_WIDTH)

    def num_layers(self) -> int:
        return bounded(self.keys, "block_count", MAX_LAYERS)

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """The last `dimensions` sizes of a tensor that must be there. Raises UnsupportedModel."""
        tensor = self.file.tensors.get(name)
        if tensor is None or len(tensor.shape) < dimensions:
            raise UnsupportedModel(
                f"{self.file.path} lacks the tensor {name} of {dimensions} dimensions"
            )
        return tensor.shape[-dimensions:]

    def side(self) -> tuple[int, int]:
        """Side of a picture or a tile, in pixels and in patches."""
        image = bounded(self.keys, "image_size", MAX_PIXELS)
        return image, max(image // bounded(self.keys, "patch_size", MAX_PATCH), 1)

    def pixels(self, resample: int, mean: Colour, std: Colour) -> Pixels:
        mean, std = self._colour("image_mean", mean), self._colour("image_std", std)
        if not all(std):
            raise self.keys.wrong("image_std", "three numbers other than zero")
        return Pixels(resample=resample, rescale=1 / 255, mean=mean, std=std)

    def _colour(self, key: str, default: Colour) -> Colour:
        found = self.keys.listed(key, float) if key in self.keys else list(default)
        if len(found) != 3 or not all(math.isfinite(each) for each in found):
            raise self.keys.wrong(key, "three finite numbers")
        red, green, blue = map(as_written, found)
        return red, green, blue


def as_written(number: float) -> float:
    """The file's numbers are float32; those of the model's settings are what people wrote."""
    return float(f"{number:.7g}")


class MmprojTokens:
    """Added tokens of the model's vocabulary, by their text; and its chat template."""

    def __init__(self, tokenizer_json: bytes, where: str, template: str = "") -> None:
        self.template = template
        self.tokenizer = Tokenizer.from_bytes(tokenizer_json, add_bos=False, bos_token_id=None)
        self._ids = {token.content: number for number, token in self.tokenizer.added_tokens.items()}
        self._where = where

    def id_of(self, *texts: str) -> tuple[str, int]:
        """The first of the texts that is a token, and its id."""
        found = next((text for text in texts if text in self._ids), None)
        if found is None:
            raise UnsupportedModel(
                f"{self._where}: its model's vocabulary lacks the token {texts[0]}, without which "
                "media have no place in a prompt"
            )
        return found, self._ids[found]

    def need(self, *texts: str) -> None:
        """Raises UnsupportedModel unless all of the texts are tokens."""
        for text in texts:
            self.id_of(text)

    def has(self, *texts: str) -> bool:
        return all(text in self._ids for text in texts)


def of_pictures(
    preparation: ImagePreparation,
    token: tuple[str, int],
    mark: str | None = None,
    before: str = "",
    behind: str = "",
) -> Kinds:
    """token: text and id.  mark: stands for a picture in a filled template; None: the token does.
    before, behind: text before and after its rows.  Raises UnsupportedModel for pictures with too
    many embeddings."""
    rows = getattr(preparation, "rows", 1)
    if not 1 <= rows <= MAX_ROWS:
        raise UnsupportedModel(f"a picture has {rows} embeddings; 1 to {MAX_ROWS} are allowed")
    return {"image": KindFacts.marked(preparation, token, mark, before=before, behind=behind)}


def side_of_table(found: MmprojFile) -> int:
    """Rows, and columns, of the table of positions, which must be there."""
    places, _ = found.shape("v.position_embd.weight", 2)
    side = math.isqrt(places)
    if side * side != places:
        raise UnsupportedModel(
            f"{found.file.path}: v.position_embd has {places} rows; a square number is needed"
        )
    return side
