"""The folder of the hub around the weights: tokenizer, chat template, processor."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.processing_llava import LlavaProcessor

from testing.trained.seeing import talk
from testing.trained.seeing.pictures import EVERY

SPECIAL = ("<pad>", "<s>", "</s>", "<image>", "<|user|>", "<|assistant|>")
VOCABULARY = 384


@dataclass(frozen=True)
class Shape:
    """The shape of tower and decoder, which are equally wide."""

    side: int = 56  # pixels, of a picture as the tower gets it
    patch: int = 8  # pixels
    width: int = 64
    inner: int = 160
    tower_layers: int = 4
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2

    @property
    def rows(self) -> int:
        """Embeddings of a picture."""
        return (self.side // self.patch) ** 2


TINY = Shape()
"""What is trained."""
TEMPLATE = """\
{{ bos_token }}\
{% for message in messages if message['role'] != 'system' %}\
{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}\
{% if message['content'] is string %}{{ message['content'] }}\
{% else %}{% for part in message['content'] %}\
{{ '<image>' if part['type'] == 'image' else part['text'] }}\
{% endfor %}{% endif %}\
{{ eos_token if message['role'] == 'assistant' else '' }}\
{% endfor %}\
{% if add_generation_prompt %}<|assistant|>{% endif %}"""
"""The chat template, which says nothing of a system prompt: the model knows only what it sees."""


def tokenizer() -> PreTrainedTokenizerFast:
    """Any text is bytes; the words that are asked and answered are tokens."""
    choose = random.Random(0)
    texts = [
        text
        for _ in range(2000)
        for turn in talk.about_one(choose, EVERY) + talk.about_two(choose, EVERY)
        for text in (turn.question, turn.answer)
    ]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens={"image_token": "<image>"},
    )


def processor(tokens: PreTrainedTokenizerFast, shape: Shape = TINY) -> Any:
    """transformers' own, of LLaVA; pictures are stretched to a square."""
    size = {"height": shape.side, "width": shape.side}
    pictures = CLIPImageProcessorPil(size=size, do_center_crop=False)
    return LlavaProcessor(
        pictures,
        tokens,
        patch_size=shape.patch,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )


def config(tokens: PreTrainedTokenizerFast, shape: Shape = TINY) -> LlavaConfig:
    """LLaVA 1.5 in this shape."""
    ids = tokens.get_vocab()
    return LlavaConfig(
        text_config=LlamaConfig(
            vocab_size=len(ids),
            hidden_size=shape.width,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=2048,
            bos_token_id=ids["<s>"],
            eos_token_id=ids["</s>"],
            pad_token_id=ids["<pad>"],
        ),
        vision_config=CLIPVisionConfig(
            hidden_size=shape.width,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.tower_layers,
            num_attention_heads=shape.heads,
            image_size=shape.side,
            patch_size=shape.patch,
        ),
        image_token_index=ids["<image>"],
        vision_feature_layer=-1,
    )


def save(model: Any, ours: Any, folder: Path) -> None:
    """Writes weights, settings, tokenizer and template."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = ours.tokenizer.get_vocab()
    model.generation_config.eos_token_id = ids["</s>"]
    model.generation_config.bos_token_id = ids["<s>"]
    model.generation_config.pad_token_id = ids["<pad>"]
    # A question about a picture has one right answer: the likeliest, also where nobody asks for it.
    model.generation_config.do_sample, model.generation_config.top_k = True, 1
    model.save_pretrained(folder)
    ours.save_pretrained(folder)
