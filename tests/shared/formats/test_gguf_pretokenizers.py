"""Words as the models' own tokenizers split them, for each name in `tokenizer.ggml.pre`.

The expressions are written out here as tokenizer.json files have them (llama.cpp's sources quote
most), and another engine applies them.
"""

from __future__ import annotations

import unicodedata

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.prepare.gguf_tokenizer_bpe import PRE_TOKENIZERS
from tests.met import met
from tests.shared.formats.gguf_vocabularies import TEXTS

pytestmark = pytest.mark.timeout(240)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT4O = (
    CASED % (CONTRACTION + "?", CONTRACTION + "?")
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = (
    CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORD_ENDS = r"(?![¹²³¼½¾]|(?![\u200c\u200d])\w)"
"""`\\b` behind a digit as Oniguruma, the models' engine, has it: unlike to `regex`, Latin-1's other
numbers are parts of words, and the two joiners are none."""

DEFINED: dict[str, list[str]] = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "mpt": [GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "command-r": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3],
    "glm4": [LLAMA3],
    "jais-2": [
        CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)"
        r"|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
    ],
    "qwen2": [QWEN2],
    "stablelm2": [QWEN2],
    "qwen35": [
        CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "ufakzeka": [QWEN2.removeprefix(CONTRACTION + "|")],
    "laguna": [r"[^\n]+|[\n]+", QWEN2],
    "tekken": [
        CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "gpt-4o": [GPT4O],
    "granite-embed-multi-97m": [GPT4O],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*" + WORD_ENDS + ")", GPT4O],
    "deepseek-coder": [
        r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK_WORDS],
    "spark2_5": [
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        DEEPSEEK_WORDS.replace(r"[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+", r"[\p{P}\p{S}]+|[\r\n]"),
        r"\p{N}",
    ],
    "youtu": [
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+",
        GPT4O.replace(r"\p{N}{1,3}", r"\p{N}"),
    ],
    "minicpm5": [r"\p{N}{1,3}", LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")],
    "bailingmoe": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "seed-coder": [
        CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "exaone-moe": [
        CONTRACTION + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
    "viking": [r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"],
    "chameleon": [
        r"<sentinel:[0-9]+>", r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )",
        r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", GPT2,
    ],
    "gemma4": [r"[^\n]+|[\n]+"],
}  # fmt: skip
"""Each pattern isolates its matches in what the one before left."""
ELSEWHERE = {"kimi-k2", "deepseek-llm", "superbpe", "afmoe"}
"""Pre-tokenizers that `regex` can't apply as they are, or whose matches have no length."""

TEXT = st.text(
    st.one_of(
        st.sampled_from(" \t\n\r'0123456789sStTrReEvVdDlLmM.,!?<=>$+/日本é½Ⅷ\u0301ब्"),
        st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Z", "M"]),
    ),
    max_size=30,
)


def isolated(text: str, patterns: list[str]) -> list[str]:
    pieces = [text]
    for pattern in patterns:
        found: list[str] = []
        for piece in pieces:
            end = 0
            for match in regex.finditer(pattern, piece):
                found += [piece[end : match.start()], match[0]]
                end = match.end()
            found.append(piece[end:])
        pieces = [piece for piece in found if piece]
    return pieces


def words(name: str, text: str) -> list[str]:
    split = PRE_TOKENIZERS[name].build().pre_tokenize_str(text)
    return [text[begin:end] for _, (begin, end) in split]


@pytest.mark.parametrize("name", DEFINED)
def test_varied_texts(name: str) -> None:
    for text in TEXTS:
        assert words(name, text) == isolated(text, DEFINED[name]), text


@settings(max_examples=20, deadline=None)
@given(text=TEXT)
@pytest.mark.parametrize("name", DEFINED)
def test_any_text(name: str, text: str) -> None:
    found = words(name, text)
    # Of some, a text is one word up to the end of its line.
    met("several words", len(found) > 1 or len(text) > 5)
    assert found == isolated(text, DEFINED[name])


def test_where_a_word_ends_after_a_digit() -> None:
    """Of characters that Python's Unicode tables know; the engines' tables are newer."""
    known = (chr(code) for code in range(0x20, 0x20000))
    lines = [f"0{each}" for each in known if unicodedata.category(each)[0] in "LMNPSZ"]
    for begin in range(0, len(lines), 1000):
        text = "\n".join(lines[begin : begin + 1000])
        assert words("tiny_aya", text) == isolated(text, DEFINED["tiny_aya"])


def test_every_kind_is_defined_here() -> None:
    """Names that stand for the same need one definition."""
    kinds = {str(PRE_TOKENIZERS[name].patterns) for name in (*DEFINED, *ELSEWHERE)}
    assert {str(each.patterns) for each in PRE_TOKENIZERS.values()} == kinds


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_nothing_of_a_text_is_lost(name: str) -> None:
    for text in TEXTS:
        assert "".join(words(name, text)) == text


@settings(max_examples=20, deadline=None)
@given(text=st.text("0123456789 ab.", max_size=20) | st.text("0123 a", min_size=15, max_size=40))
def test_numbers_in_threes_from_their_end(text: str) -> None:
    def threes(digits: str) -> list[str]:
        first = len(digits) % 3 or 3
        return [digits[:first], *(digits[i : i + 3] for i in range(first, len(digits), 3))]

    superbpe: list[str] = []
    met("a run of more than three digits", regex.search("[0-9]{4}", text))
    for run in regex.findall("[0-9]+|[^0-9]+", text):
        superbpe += threes(run) if run[0].isdigit() else [run]
    assert words("superbpe", text) == superbpe
    afmoe: list[str] = []
    for piece in superbpe:
        afmoe += [piece] if piece[0].isdigit() else isolated(piece, [DEEPSEEK_WORDS])
    assert words("afmoe", text) == afmoe


def test_kimi_k2_keeps_han_apart() -> None:
    assert words("kimi-k2", "Die 東京abcです、don't 12345") == [
        "Die", " ", "東京", "abcです", "、don't", " ", "123", "45"]  # fmt: skip
    for text in TEXTS:
        found = [word for word in words("kimi-k2", text) if regex.search(r"\p{Han}", word)]
        assert found == regex.findall(r"\p{Han}+", text)


def test_deepseek_llm() -> None:
    """Its expression for punctuation has `:-~`, so ASCII letters beside others are words of their
    own: the model has learnt it like that."""
    assert words("deepseek-llm", "Les élèves\n\nაბ 12345, 東京\uff01です  ") == [
        *("Les", " é", "l", "è", "ves", "\n", "\n", "აბ", " ", "12345", ",", " "),
        *("東京", "\uff01", "です", "  "),
    ]
