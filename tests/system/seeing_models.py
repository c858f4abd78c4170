"""A tiny LLaVA with random weights as a folder of the hub, and what transformers says with it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from tests.shared.media.media_tokenizer import tokenizer
from tests.system.hub_folders import continued, write_folder
from tests.worker.vision.mllama_cases import takes_inputs

SIDE, PATCH = 28, 7
ROWS = (SIDE // PATCH) ** 2
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %};"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Takes parts alone, as LLaVA's own does."""


def write_llava(folder: Path) -> Path:
    """The folder, with weights, tokenizer, template and the image processor's settings."""
    import torch
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig
    from transformers import LlavaForConditionalGeneration as Llava
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokens = tokenizer()
    ids = tokens.get_vocab(with_added_tokens=True)
    config = LlavaConfig(
        text_config=LlamaConfig(
            vocab_size=len(ids),
            hidden_size=72,
            intermediate_size=100,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=512,
            initializer_range=0.25,
            bos_token_id=ids["<s>"],
            eos_token_id=ids["</s>"],
            pad_token_id=ids["</s>"],
        ),
        vision_config=CLIPVisionConfig(
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=SIDE,
            patch_size=PATCH,
            initializer_range=0.2,
        ),
        image_token_index=ids["<image>"],
    )
    torch.manual_seed(17)
    model = Llava(config).eval()
    size = {"height": SIDE, "width": SIDE}
    processor = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size)
    return write_folder(folder, model, processor, tokens, template=TEMPLATE)


@cache
def _theirs(folder: Path) -> tuple[Any, Any]:
    from transformers import LlavaForConditionalGeneration, LlavaProcessor, PreTrainedTokenizerFast
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    fast = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token="</s>")
    processor = LlavaProcessor(
        CLIPImageProcessorPil.from_pretrained(folder),
        fast,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    return LlavaForConditionalGeneration.from_pretrained(folder).eval(), processor


def said_by_transformers(
    folder: Path, prompt: str, pictures: list[Image.Image], count: int
) -> tuple[list[int], list[int]]:
    """(the prompt's ids, so many tokens, the likeliest each, that come after it)."""
    model, processor = _theirs(folder)
    given = processor(text=[prompt], images=pictures, return_tensors="pt")
    return continued(model, given, count)


MLLAMA_TOKEN = "<|picture|>"
MLLAMA_TEMPLATE = (
    "{% for m in messages %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<|picture|>{% else %}{{ c['text'] }}{% endif %}{% endfor %};"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Has nothing before a picture that comes first."""


def write_mllama(folder: Path) -> Path:
    """Writes the folder of a tiny Llama 3.2 Vision, whose gates are random, too."""
    import torch
    from transformers import MllamaConfig, MllamaForConditionalGeneration
    from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil

    tokens = tokenizer(MLLAMA_TOKEN)
    ids = tokens.get_vocab(with_added_tokens=True)
    config = MllamaConfig(
        text_config={
            "vocab_size": ids[MLLAMA_TOKEN],
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.25,
            "cross_attention_layers": [1, 2],
            "bos_token_id": ids["<s>"],
            "eos_token_id": ids["</s>"],
            "pad_token_id": ids["</s>"],
        },
        vision_config={
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_global_layers": 1,
            "attention_heads": 4,
            "image_size": SIDE,
            "patch_size": PATCH,
            "vision_output_dim": 2 * 48,
            "intermediate_layers_indices": [1],
            "initializer_range": 0.2,
        },
        image_token_index=ids[MLLAMA_TOKEN],
    )
    torch.manual_seed(43)
    model = MllamaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "gate" in name.rpartition(".")[2]:
                parameter.normal_(0.5, 0.3)
    processor = MllamaImageProcessorPil(size={"height": SIDE, "width": SIDE})
    return write_folder(folder, model, processor, tokens, template=MLLAMA_TEMPLATE)


@cache
def _their_mllama(folder: Path) -> tuple[Any, Any]:
    from transformers import MllamaForConditionalGeneration
    from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil

    model = takes_inputs(MllamaForConditionalGeneration.from_pretrained(folder).eval())
    return model, MllamaImageProcessorPil.from_pretrained(folder)


def said_by_mllama(
    folder: Path, tokens: list[int], pictures: list[Image.Image], count: int
) -> list[int]:
    """So many tokens, the likeliest each, that come after these. Each picture has a token."""
    import torch
    from transformers.models.mllama.processing_mllama import (
        convert_sparse_cross_attention_mask_to_dense,
        get_cross_attention_token_mask,
    )

    model, processor = _their_mllama(folder)
    found, also = list(tokens), {}
    if pictures:
        also = dict(processor([pictures], return_tensors="pt"))
        counts = also.pop("num_tiles")
    for _ in range(count):
        if pictures:
            masks = [get_cross_attention_token_mask(found, model.config.image_token_index)]
            dense = convert_sparse_cross_attention_mask_to_dense(masks, counts, 4, len(found))
            also["cross_attention_mask"] = torch.from_numpy(dense)
        with torch.inference_mode():
            logits = model(torch.tensor([found]), **also).logits[0, -1]
        found.append(int(logits.argmax()))
    return found[len(tokens) :]


SQUARE = 12
"""Pixels in a row of what becomes one row of the tiny Gemma 4's pictures."""


def write_gemma4(folder: Path) -> Path:
    """Writes the folder of a tiny Gemma 4, whose pictures see themselves as a whole in the layers
    with a window."""
    import torch
    from transformers import Gemma4Config
    from transformers import Gemma4ForConditionalGeneration as Gemma
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    tokens = tokenizer()
    ids = tokens.get_vocab(with_added_tokens=True)
    config = Gemma4Config(
        text_config={
            "vocab_size": len(ids),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": 21,
            "hidden_size_per_layer_input": 0,
            "max_position_embeddings": 512,
            "initializer_range": 0.25,
            "bos_token_id": ids["<s>"],
            "eos_token_id": ids["</s>"],
            "pad_token_id": ids["</s>"],
            "use_bidirectional_attention": "vision",
        },
        vision_config={
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 12,
            "patch_size": SQUARE // 3,
            "position_embedding_size": 400,
            "initializer_range": 0.2,
        },
        image_token_id=ids["<|image|>"],
        boi_token_id=ids["<|image>"],
        eoi_token_id=ids["<image|>"],
    )
    torch.manual_seed(41)
    model = Gemma(config).eval()
    processor = Gemma4ImageProcessorPil(patch_size=SQUARE // 3, max_soft_tokens=70)
    return write_folder(folder, model, processor, tokens)
