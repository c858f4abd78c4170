"""A Whisper in the shape of the release `tiny`, whose text is known: for measurements of speed.

Its layers have random weights and do all that a release's do. What it says follows from the places
of the tokens alone: the vector of place i is by far the largest part of what comes out of the
layers, and the embedding of the i-th token points there. So each window has the same segments, with
times, and a decoder believes them at the first temperature; random weights alone would be tried
again at every temperature, and end where they end.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from testing.trained.hearing import hub_folder
from testing.trained.hearing.hub_folder import END, START

SECONDS = 30
"""Of a window."""
WORDS = 50_257
"""Tokens before the special ones."""
PROMPT = 3
"""Tokens before the text: start, language, task."""
SPOKEN = 20
"""Words of a segment; there are three of ten seconds in a window."""
TOWARDS = 1.2
"""How far a token's embedding points to its places."""
PLACE = 10.0
"""Length of a place's vector."""
TASKS = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>")
NO_TIMES = "<|notimestamps|>"


def tokenizer() -> Any:
    """Bytes and made-up words, then Whisper's special tokens and times, numbered as in releases.
    The last word is empty: CTranslate2 tells by it that the model knows several languages."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"Ġ{_word(number)}" for number in range(WORDS - len(letters) - 1)]
    vocabulary = {text: at for at, text in enumerate((*letters, *words, ""))}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    languages = [f"<|{code}|>" for code in list(LANGUAGES)[:99]]
    special = [END, START, *languages, *TASKS, NO_TIMES]
    times = [f"<|{step * 0.02:.2f}|>" for step in range(SECONDS * 50 + 1)]
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in times])
    return made


def _word(number: int) -> str:
    """Four syllables, spread over all there are, so that no text of them repeats itself."""
    found, number = "", number * 7_919_777 % 70**4
    for _ in range(4):
        number, consonant = divmod(number, 14)
        number, vowel = divmod(number, 5)
        found += "bdfghklmnprstv"[consonant] + "aeiou"[vowel]
    return found


def spoken(ids: dict[str, int]) -> list[int]:
    """The tokens of a window."""
    words = np.random.default_rng(5).choice(np.arange(300, WORDS - 1), 3 * SPOKEN, replace=False)
    found = []
    for number in range(3):
        part = words[number * SPOKEN : (number + 1) * SPOKEN].tolist()
        begin, end = (f"<|{10.0 * (number + more):.2f}|>" for more in (0, 1))
        found += [ids[begin], *part, ids[end]]
    return [*found, ids[END]]


def write_speaker(folder: Path) -> Path:
    """Writes the model as a folder of the hub, in float32."""
    import torch
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    tokens = tokenizer()
    ids = tokens.get_vocab(with_added_tokens=True)
    torch.manual_seed(7)
    # Its defaults are the shape of `tiny`.
    config = WhisperConfig(vocab_size=len(ids), decoder_start_token_id=ids[START])
    for name in ("bos", "eos", "pad"):
        setattr(config, f"{name}_token_id", ids[END])
    model = WhisperForConditionalGeneration(config).eval()
    decoder = model.model.decoder
    places = torch.nn.functional.normalize(torch.randn(config.max_target_positions, config.d_model))
    with torch.no_grad():
        decoder.embed_positions.weight.copy_(PLACE * places)
        for number, token in enumerate(spoken(ids)):
            decoder.embed_tokens.weight[token] += TOWARDS * places[PROMPT - 1 + number]
    model.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    tokens.save(str(folder / "tokenizer.json"))
    named = {"bos_token": END, "eos_token": END, "tokenizer_class": "WhisperTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "generation_config.json").write_text(json.dumps(generation_config(ids)))
    return folder


def generation_config(ids: dict[str, int]) -> dict[str, Any]:
    """As releases have it, without what tells when a word is spoken."""
    found = hub_folder.generation_config(ids)
    del found["alignment_heads"]
    languages = {text: at for text, at in ids.items() if ids["<|en|>"] <= at < ids[TASKS[0]]}
    return found | {
        "suppress_tokens": [ids[text] for text in (START, *TASKS)],
        "max_initial_timestamp_index": 50,
        "max_length": 448,
        "lang_to_id": languages,
    }
