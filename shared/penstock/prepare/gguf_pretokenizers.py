"""How text is split into words before byte-level BPE, by the name in `tokenizer.ggml.pre`.

The names and what each stands for are llama.cpp's (the table of pre-tokenizers in its vocabulary
loader); where a model's own tokenizer.json says the same in its own words, those are used.
"""

from __future__ import annotations

import msgspec
from tokenizers import Regex, normalizers, pre_tokenizers

from penstock.errors import UnsupportedModel

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"

LLAMA3 = rf"{CONTRACTIONS}|{WORD}|\p{{N}}{{1,3}}|{PUNCTUATION_AND_SPACE}"
QWEN2 = rf"{CONTRACTIONS}|{WORD}|\p{{N}}|{PUNCTUATION_AND_SPACE}"
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


class PreTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """patterns: applied one after the other; each isolates its matches in what is left.
    digits: before them, every digit is split off alone.
    ignore_merges: a word that is in the vocabulary is one token, whatever the merges say.
    add_bos: whether BOS is added where the file doesn't say.  nfc: text is normalised to NFC.
    """

    patterns: tuple[str, ...] = (GPT2,)
    digits: bool = False
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """As an object of the tokenizers library, the bytes' mapping to letters included."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.patterns == (GPT2,):  # ByteLevel has this pattern built in, and is faster
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
        else:
            steps += [pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns]
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_GPT2 = PreTokenizer()
_SMOLLM = PreTokenizer(digits=True)
_LLAMA3 = PreTokenizer(patterns=(LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer(patterns=(QWEN2,), nfc=True)
_DEFAULT = PreTokenizer(patterns=DEFAULT)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "jais": _GPT2,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "command-r": _SMOLLM,
    "codeshell": _SMOLLM,
    "exaone": _SMOLLM,
    "minerva-7b": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "dbrx": PreTokenizer(patterns=(LLAMA3,)),
    "smaug-bpe": PreTokenizer(patterns=(LLAMA3,)),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": PreTokenizer(patterns=(TEKKEN,), ignore_merges=True, add_bos=True),
    "deepseek-coder": PreTokenizer(patterns=DEEPSEEK_CODER),
}


def find_pre_tokenizer(name: str, where: str) -> PreTokenizer:
    """Raises UnsupportedModel, naming it, for one that isn't known."""
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"{where}: the pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known; "
            f"known: {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]
