"""Tiny CLIP and SigLIP models with random weights as folders of the hub, and what transformers
makes of the same texts and pictures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

SIDE, PATCH = 28, 7
WORDS = 60
START, END, PAD = "<start>", "<end>", "<pad>"
TEXT: dict[str, Any] = {
    "vocab_size": 70,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "initializer_range": 0.3,
}
PICTURES: dict[str, Any] = {
    "hidden_size": 40,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": PATCH,
    "initializer_range": 0.2,
}


@dataclass(frozen=True)
class SpaceModel:
    """A folder, and transformers' model and processor of it."""

    folder: Path
    model: Any
    tokens: Any
    pictures: Any
    length: int | None
    """Tokens that texts are filled up to; None: they aren't."""

    def of_ids(self, token_ids: list[int]) -> np.ndarray:
        """A text's vector as the model gives it, [size]."""
        with torch.inference_mode():
            found = self.model.get_text_features(torch.tensor([token_ids]))
        return np.asarray(found.pooler_output[0].numpy())

    def of_text(self, text: str) -> np.ndarray:
        return self.of_ids(self.ids(text))

    def ids(self, text: str) -> list[int]:
        more = {"padding": "max_length", "max_length": self.length} if self.length else {}
        return list(self.tokens(text, **more)["input_ids"])

    def of_picture(self, picture: Image.Image) -> np.ndarray:
        given = self.pictures(picture, return_tensors="pt")
        with torch.inference_mode():
            return np.asarray(self.model.get_image_features(**given).pooler_output[0].numpy())


def write_clip(folder: Path, *, old: bool = False, layers: int = 3) -> SpaceModel:
    """old: the end's id is the one that the first releases state.  layers: of each half."""
    from transformers import CLIPConfig, CLIPModel
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokens = _tokenizer(f"{START} $A {END}")
    end = tokens.token_to_id(END)
    own = {"num_hidden_layers": layers}
    text = TEXT | own | {"max_position_embeddings": 40, "eos_token_id": 2 if old else end}
    config = CLIPConfig(text_config=text, vision_config=PICTURES | own, projection_dim=24)
    size = {"height": SIDE, "width": SIDE}
    processor = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size)
    return _written(folder, CLIPModel(config), processor, tokens, None)


def write_siglip(folder: Path, *, side: str = "right", layers: int = 3) -> SpaceModel:
    """side: on which texts are filled up.  layers: of each half."""
    from transformers import SiglipConfig, SiglipModel
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    own = {"num_hidden_layers": layers}
    text = TEXT | own | {"max_position_embeddings": 20, "projection_size": 40}
    config = SiglipConfig(text_config=text, vision_config=PICTURES | own)
    processor = SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    return _written(folder, SiglipModel(config), processor, _tokenizer(f"$A {END}"), 20, side)


def _tokenizer(template: str) -> Tokenizer:
    words = {f"w{number}": number for number in range(WORDS)}
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    # The end has the highest id, as in CLIP's own.
    made.add_special_tokens([AddedToken(each, special=True) for each in (PAD, START, END)])
    named = [(each, made.token_to_id(each)) for each in (START, END)]
    made.post_processor = processors.TemplateProcessing(
        single=template, pair=f"{template} $B", special_tokens=named
    )
    return made


def _written(
    folder: Path,
    model: Any,
    processor: Any,
    tokens: Tokenizer,
    length: int | None,
    side: str = "right",
) -> SpaceModel:
    from transformers import PreTrainedTokenizerFast

    torch.manual_seed(11)
    for parameter in model.parameters():  # Biases and norms are 0 and 1 when made.
        if parameter.ndim:
            parameter.data += 0.1 * torch.randn_like(parameter)
    folder.mkdir(parents=True)
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    tokens.save(str(folder / "tokenizer.json"))
    named = {"eos_token": END, "pad_token": PAD, "padding_side": side}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokens, **named)
    return SpaceModel(folder, model, fast, processor, length)


def unit(vector: np.ndarray) -> np.ndarray:
    return np.asarray(vector / np.sqrt((vector.astype(np.float64) ** 2).sum()))
