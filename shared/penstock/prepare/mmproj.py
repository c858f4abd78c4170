"""What a GGUF model sees with, of a file of its own: llama.cpp's mmproj.

Source of the keys and names: llama.cpp's converter, and gguf's constants. How pictures are prepared
is mostly not in the file: it is what the family's image processor does in transformers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.vision.reading import MAX_PATCH, MAX_PIXELS, MAX_WIDTH, bounded, heads
from penstock.formats.fields import Fields
from penstock.formats.gguf import GGUFFile
from penstock.layer_spec import NormSpec
from penstock.media_facts import (
    Colour,
    ImagePreparation,
    KindFacts,
    MediaFacts,
    Pixels,
    RowImages,
    ScannedImages,
    TiledImages,
)
from penstock.model_config import ModelConfig
from penstock.prepare.image_processor import CLIP_MEAN, CLIP_STD, HALF
from penstock.prepare.odd_values import odd_values_refused
from penstock.text.tokenizer import Tokenizer
from penstock.vision_spec import (
    LearnedPositions,
    MLPProjector,
    PoolProjector,
    RotaryPositions,
    ShuffleProjector,
    SquareMLPProjector,
    TowerSpec,
    VisionSpec,
)

MAX_LAYERS = 256
MAX_ROWS = 65_536
SPARE_TOKENS = tuple(f"<unused{number}>" for number in range(99))
"""Of Gemma's vocabulary: where a file lacks the token that stands for a picture's rows, one of
these does."""


class _File(NamedTuple):
    """keys: those that begin with clip.vision, without that."""

    file: GGUFFile
    keys: Fields
    text: ModelConfig

    def activation(self, gelu: str) -> Any:
        """gelu: what use_gelu means in this family."""
        flags = self.file.metadata
        if flags.get("clip.use_silu"):
            return "silu"
        return gelu if flags.get("clip.use_gelu") else "quick_gelu"

    def tower(self, norm: str, **parts: Any) -> TowerSpec:
        keys = self.keys
        hidden = bounded(keys, "embedding_length", MAX_WIDTH)
        return TowerSpec(
            hidden_size=hidden,
            intermediate_size=bounded(keys, "feed_forward_length", MAX_WIDTH),
            num_layers=bounded(keys, "block_count", MAX_LAYERS),
            num_heads=heads(keys, "attention.head_count", hidden),
            patch=bounded(keys, "patch_size", MAX_PATCH),
            norm=NormSpec(
                kind="rms" if norm == "rms" else "layer",
                eps=_as_written(keys.number("attention.layer_norm_epsilon")),
                bias=norm != "rms",
            ),
            **parts,
        )

    def side(self) -> tuple[int, int]:
        """Of a picture or a tile: pixels, and patches."""
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
        red, green, blue = map(_as_written, found)
        return red, green, blue


def _as_written(number: float) -> float:
    """The file's numbers are float32; those of the model's settings are what people wrote."""
    return float(f"{number:.7g}")


class _Tokens:
    """Of the model's vocabulary."""

    def __init__(self, tokenizer_json: bytes, where: str) -> None:
        tokenizer = Tokenizer.from_bytes(tokenizer_json, add_bos=False, bos_token_id=None)
        self._ids = {token.content: number for number, token in tokenizer.added_tokens.items()}
        self._where = where

    def id_of(self, *texts: str) -> tuple[str, int]:
        """The first of the texts that is a token, and its id."""
        found = next((text for text in texts if text in self._ids), None)
        if found is None:
            raise UnsupportedModel(
                f"{self._where}: its model's vocabulary lacks the token {texts[0]}, without which "
                "pictures have no place in a prompt"
            )
        return found, self._ids[found]


_Read = Callable[[_File, _Tokens], tuple[VisionSpec, KindFacts]]


def read_mmproj(
    path: Path, text: ModelConfig, tokenizer_json: bytes
) -> tuple[ModelConfig, MediaFacts]:
    """The decoder with a tower, and how pictures are prepared for it. path: of the file beside the
    decoder `text`. Raises ModelNotFound, and UnsupportedModel for a
    file that is broken, of a kind that isn't served, or another model's."""
    file, where = GGUFFile(path), str(path)
    stated = Fields(file.metadata, where)
    if stated.text("general.architecture", "") != "clip":
        raise UnsupportedModel(f"{where} is no mmproj file: its general.architecture isn't clip")
    if not stated.flag("clip.has_vision_encoder", False):
        raise UnsupportedModel(f"{where} holds nothing to see with (clip.has_vision_encoder)")
    kind = stated.text("clip.projector_type", stated.text("clip.vision.projector_type", ""))
    if kind not in KINDS:
        raise UnsupportedModel(
            f"{where}: the projector {kind[:80]!r} is not served; {', '.join(KINDS)} are"
        )
    begin = "clip.vision."
    values = {
        key.removeprefix(begin): value
        for key, value in file.metadata.items()
        if key.startswith(begin)
    }
    known_as, decoder, read = KINDS[kind]
    if text.architecture != decoder:
        raise UnsupportedModel(
            f"{where} belongs to {known_as}, whose decoder is of the family {decoder}, and not "
            f"{text.architecture}"
        )
    keys = Fields(values, f"{where}, clip.vision")
    if keys.integer("projection_dim", text.hidden_size) != text.hidden_size:
        raise UnsupportedModel(
            f"{where} makes rows of {keys.integer('projection_dim')} numbers; its model's hidden "
            f"size is {text.hidden_size}"
        )
    with odd_values_refused(where):
        vision, facts = read(_File(file, keys, text), _Tokens(tokenizer_json, where))
    config = msgspec.structs.replace(text, vision=vision)
    return config, MediaFacts(kinds={"image": facts})


def _siglip(found: _File, *, fractional: bool = False) -> TowerSpec:
    return found.tower(
        "layer",
        activation=found.activation("gelu_tanh"),
        patch_bias=True,
        last_norm=True,
        positions=LearnedPositions(side=found.side()[1], fractional=fractional),
    )


def _gemma3(found: _File, tokens: _Tokens) -> tuple[VisionSpec, KindFacts]:
    image, patches = found.side()
    factor = bounded(found.keys, "projector.scale_factor", patches, 4)
    if patches % factor:
        raise found.keys.wrong("projector.scale_factor", f"a divisor of {patches}")
    tower = _siglip(found)
    side = patches // factor
    vision = VisionSpec(
        tower=tower,
        projector=PoolProjector(side=side, eps=tower.norm.eps, plus_one=False),
        image_size=image,
        spans_whole=True,
    )
    begin, _ = tokens.id_of("<start_of_image>")
    end, _ = tokens.id_of("<end_of_image>")
    preparation = ScannedImages(
        pixels=found.pixels(2, HALF, HALF),
        height=image,
        width=image,
        rows=side * side,
        begin=f"\n\n{begin}",
        end=f"{end}\n\n",
    )
    return vision, _facts(preparation, begin, *tokens.id_of("<image_soft_token>", *SPARE_TOKENS))


def _idefics3(found: _File, tokens: _Tokens) -> tuple[VisionSpec, KindFacts]:
    image, patches = found.side()
    factor = bounded(found.keys, "projector.scale_factor", patches, 2)
    if patches % factor:
        raise found.keys.wrong("projector.scale_factor", f"a divisor of {patches}")
    vision = VisionSpec(
        tower=_siglip(found, fractional=True), projector=ShuffleProjector(factor=factor)
    )
    token, token_id = tokens.id_of("<image>")
    preparation = TiledImages(
        pixels=found.pixels(1, HALF, HALF),
        longest_edge=bounded(found.keys, "preproc_image_size", MAX_PIXELS, 4 * image),
        tile=image,
        rows=(patches // factor) ** 2,
    )
    tokens.id_of(preparation.around)
    return vision, _facts(preparation, token, token, token_id)


def _pixtral(found: _File, tokens: _Tokens) -> tuple[VisionSpec, KindFacts]:
    image, patches = found.side()
    merge = bounded(found.keys, "spatial_merge_size", patches, 1)
    tower = found.tower(
        "rms",
        activation=found.activation("gelu"),
        gated=True,
        qkv_bias=False,
        bias=False,
        first_norm=True,
        positions=RotaryPositions(alternating=True, adjacent=True),
    )
    if tower.head_dim % 4:
        raise found.keys.wrong("attention.head_count", "heads of a multiple of 4 numbers")
    bias = "mm.1.bias" in found.file.tensors
    projector: MLPProjector | SquareMLPProjector = MLPProjector(bias=bias)
    if "mm.patch_merger.weight" in found.file.tensors:
        norm = NormSpec(kind="rms", eps=found.text.norm.eps)
        projector = SquareMLPProjector(factor=merge, norm=norm, bias=bias, merged=True)
    token, token_id = tokens.id_of("[IMG]")
    preparation = RowImages(
        pixels=found.pixels(3, CLIP_MEAN, CLIP_STD),
        longest_edge=image,
        patch=tower.patch * merge,
    )
    for text in (preparation.row_end, preparation.end):
        tokens.id_of(text)
    return VisionSpec(tower=tower, projector=projector), _facts(preparation, token, token, token_id)


def _facts(preparation: ImagePreparation, mark: str, token: str, token_id: int) -> KindFacts:
    rows = getattr(preparation, "rows", 1)
    if not 1 <= rows <= MAX_ROWS:
        raise UnsupportedModel(f"a picture has {rows} embeddings; 1 to {MAX_ROWS} are allowed")
    return KindFacts(preparation=preparation, placeholder=mark, token=token, token_id=token_id)


KINDS: dict[str, tuple[str, str, _Read]] = {
    "gemma3": ("Gemma 3", "gemma3", _gemma3),
    "idefics3": ("Idefics 3 or SmolVLM", "llama", _idefics3),
    "pixtral": ("Pixtral or Mistral Small 3", "llama", _pixtral),
}
"""clip.projector_type -> its models, the family that their decoders' files belong to, and who reads
the file."""
