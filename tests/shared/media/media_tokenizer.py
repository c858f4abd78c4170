"""A tokenizer of bytes with the special tokens of every family that takes media."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

SPECIAL = (
    "<s>",
    "</s>",
    "<image>",
    "</image>",
    "<slice>",
    "</slice>",
    "<image_id>",
    "</image_id>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    "<|image>",
    "<image|>",
    "<|audio>",
    "<|audio|>",
    "<audio|>",
    "<|video|>",
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<img>",
    "</img>",
    "<IMG_CONTEXT>",
    "[IMG]",
    "[IMG_BREAK]",
    "[IMG_END]",
    "<|image_start|>",
    "<|image_end|>",
    "<|img_thumbnail|>",
    *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 7) for column in range(1, 7)),
    "<|image|>",
    "<|patch|>",
    "<|tile_x_separator|>",
    "<|tile_y_separator|>",
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
)
OF_VIDEOS = (
    "<video>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
)
"""Further ones, of videos. They are only where they are needed: what a tiny model with random
weights says depends on how many tokens it has."""
MINIMAX = (
    "]<]image[>[",
    "]<]video[>[",
    "]<]start of image[>[",
    "]<]end of image[>[",
)
"""Marks around MiniMax M3's media. Tokenizers have these, too, only where they are needed."""
STEP = (
    "<im_patch>",
    "<im_start>",
    "<im_end>",
    "<patch_start>",
    "<patch_end>",
    "<patch_newline>",
)
"""Tokens around Step 3.7's pictures, likewise."""
JANUS = ("<begin_of_image>", "<end_of_image>")
"""Tokens around Janus's pictures, likewise."""
HEARD = (
    *("<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"),
    *("<start_of_audio>", "<end_of_audio>", "<audio_soft_token>"),
)
"""Tokens of Qwen3's and Gemma 3n's sounds, likewise."""
OMNI_2_5 = ("<|IMAGE|>",)
"""The token of Qwen2.5-Omni's pictures, likewise."""
MERGES = ("\n\n", "\n\n\n", "ab", "abc")
"""Texts beyond single bytes that the tokenizer has a token for: line breaks join."""


def tokenizer(*more: str) -> Tokenizer:
    """Bytes, a few merges, the special tokens of all families, and more of these."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    for text in MERGES:
        inner = text.replace("\n", "Ċ")
        vocabulary[inner] = len(vocabulary)
        merges.append((inner[:-1], inner[-1]))
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in (*SPECIAL, *more)]
    )
    return made
