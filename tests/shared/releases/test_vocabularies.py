"""Tokenizers of releases: GGUF vocabularies give the ids of llama.cpp's test vectors, and the text
of a stream is that of all ids at once.

They aren't part of the repository: PENSTOCK_RELEASES names the folder where they lie.
"""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest

from penstock.text.detokenizer import make_detokenizer
from penstock.text.tokenizer import Tokenizer
from tests.shared.formats.gguf_vocabularies import TEXTS, built
from tests.shared.releases.evidence import TOKENIZERS, VOCABULARIES

FOLDER = Path(os.environ.get("PENSTOCK_RELEASES", ""))
pytestmark = pytest.mark.skipif(
    "PENSTOCK_RELEASES" not in os.environ or not (FOLDER / "tokenizers").is_dir(),
    reason="PENSTOCK_RELEASES names no folder with the tokenizers of releases",
)
MARK = "\n__ggml_vocab_test__\n"


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_of_a_vocabulary(name: str) -> None:
    path = FOLDER / f"llamacpp/models/ggml-vocab-{name}.gguf"
    tokenizer, _ = built(path, encoder="bert" in name)
    texts = path.with_suffix(".gguf.inp").read_text(encoding="utf-8").split(MARK)
    wanted = path.with_suffix(".gguf.out").read_text(encoding="utf-8").splitlines()
    compared = 0
    for text, ids in zip(texts, wanted, strict=False):  # an end of file is no text
        if tokenizer.normalizer and unicodedata.normalize("NFC", text) != text:
            continue  # Qwen's tokenizers normalise; llama.cpp doesn't.
        found = tokenizer.encode(text, add_special_tokens=False).ids
        assert found == [int(each) for each in ids.split()], text
        compared += 1
    assert compared > 40


ENDS = {
    "ggml-vocab-deepseek-llm": (100001,),
    "ggml-vocab-falcon": (11,),
    "ggml-vocab-gemma-4": (1, 106, 50),
    "ggml-vocab-llama-bpe": (128001, 128009),
    "ggml-vocab-llama-spm": (2,),
    "ggml-vocab-phi-3": (32000, 32007),
    "ggml-vocab-qwen2": (151643, 151645),
}
"""Where the makers' releases end an answer, by generation_config.json if they have one. Not in it:
Llama 3.1's <|eom_id|>, which this vocabulary has under another text, and Phi 3's <|assistant|>."""
FILE_ENDS = {
    "qwen2.5-coder-0.5b-instruct-q4_k_m": (151645, 151643),
    "gemma-3-270m-q4_k_m": (1, 106),
}
"""What ENDS has, of whole models' files."""


@pytest.mark.parametrize("name", [*ENDS, *FILE_ENDS])
def test_answers_end_where_the_makers_say(name: str) -> None:
    path = FOLDER / f"llamacpp/models/{name}.gguf" if name in ENDS else FOLDER / f"{name}.gguf"
    assert built(path)[1].end_ids == (ENDS | FILE_ENDS)[name]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_stream_says_what_the_whole_says(name: str) -> None:
    content = (FOLDER / f"tokenizers/{name}/models/tokenizer.json").read_bytes()
    tokenizer = Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=False)
        detokenizer = make_detokenizer(tokenizer, skip_special_tokens=True)
        pieces = [detokenizer.push([each]) for each in ids]
        assert "".join(pieces) + detokenizer.finish() == tokenizer.decode(ids)
