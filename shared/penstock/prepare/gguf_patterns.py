"""The regular expressions that split text into words before byte-level BPE.

They are those of the models' own tokenizers, in the syntax of the tokenizers library (Oniguruma).
Where llama.cpp has an adapted one, because its engine lacks something, the original counts.
"""

from __future__ import annotations

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
PUNCTUATION_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased_words(end: str = "", upper: str = UPPER, lower: str = LOWER) -> str:
    """Words that begin anew at a capital: capitals, then others, one of both optional."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return rf"{start}{upper}*{lower}+{end}|{start}{upper}+{lower}*{end}"


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|{WORD}|\p{{N}}{{1,3}}|{PUNCTUATION}|{SPACE}"
QWEN2 = rf"{CONTRACTIONS}|{WORD}|\p{{N}}|{PUNCTUATION}|{SPACE}"
QWEN35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACE}"
)
WITHOUT_CONTRACTIONS = rf"{WORD}|\p{{N}}|{PUNCTUATION}|{SPACE}"
TEKKEN = rf"{cased_words()}|\p{{N}}|{PUNCTUATION_SLASH}|{SPACE}"
GPT4O = rf"{cased_words(CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{PUNCTUATION_SLASH}|{SPACE}"
KIMI_K2 = (
    r"\p{Han}+|"
    + cased_words(CONTRACTIONS + "?", rf"[{UPPER}&&[^\p{{Han}}]]", rf"[{LOWER}&&[^\p{{Han}}]]")
    + rf"|\p{{N}}{{1,3}}|{PUNCTUATION}|{SPACE}"
)
_WIDTHS = "|".join(rf"\s{{{width}}}(?!\S)" for width in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
JAIS2 = rf"{CONTRACTIONS}|{WORD}|\p{{N}}{{1,3}}|{PUNCTUATION}|\s*[\r\n]+|{_WIDTHS}|\s"
BAILING = (
    rf"'(?i:[sdmt]|ll|ve|re)|{WORD}|\p{{N}}|{PUNCTUATION}|\s*[\r\n]|\s+(?!\S)|\s+"
)  # fmt: skip
SEED_CODER = rf"{CONTRACTIONS}|{WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACE}"
EXAONE_MOE = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
MINICPM5 = (
    r"\p{N}{1,3}",
    rf"{CONTRACTIONS}|{WORD}|\p{{N}}+|{PUNCTUATION}|{SPACE}",
)

_HAN_TO_HANGUL = r"[一-龥ࠀ-一가-\x{d7ff}]+"
_HAN_KANA = r"[一-龥\x{3040}-ゟ゠-ヿ]+"
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_WORDS_AND_SYMBOLS = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
)
DEEPSEEK_V3_WORDS = rf"{_WORDS_AND_SYMBOLS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACE}"
DEEPSEEK_V3 = (r"\p{N}{1,3}", _HAN_KANA, DEEPSEEK_V3_WORDS)
SPARK = (
    r"\p{N}{1,3}",
    _HAN_KANA,
    rf"{_WORDS_AND_SYMBOLS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
    r"\p{N}",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_TO_HANGUL, r"\p{N}")
_CASED_LETTERS = (
    r"[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅ"
    r"Ὀ-Ὅὐ-ὗὙὛὝὟ-\x{1f7d}ᾀ-ᾴᾶ-ᾼ\x{1fbe}ῂ-ῄῆ-ῌῐ-\x{1fd3}ῖ-\x{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄ"
    r"Ⰰ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]"
)
"""The letters with a case that the models' tokenizer names, which are not all that have one."""
DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?{_CASED_LETTERS}+",
    r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+",
    r"\s+$",
    _HAN_TO_HANGUL,
    r"\p{N}+",
)
YOUTU = (
    r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\x{3040}-ゟ゠-ヿ]+",
    rf"{cased_words(CONTRACTIONS + '?')}|\p{{N}}|{PUNCTUATION_SLASH}|{SPACE}",
)
FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
CHAMELEON = (
    r"<sentinel:[0-9]+>",
    r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    GPT2,
)
SUPERBPE = (r"\p{N}+", r"(?=(\d{3})+(?!\d))")
"""No words at all: only numbers are cut, into threes from their end."""
TINY_AYA = (r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O)
AFMOE = (
    r"\p{N}{1,2}(?=(?:\p{N}{3})*(?!\p{N}))|\p{N}{3}",
    r"[一-鿿㐀-䶿\x{f900}-\x{faff}\x{3040}-ゟ゠-ヿ･-ﾟ⼀-\x{2fdf}เ-\x{e7f}\x{e80}-\x{eff}ក-\x{17ff}"
    r"က-႟ꩠ-ꩿꧠ-\x{a9ff}가-\x{d7af}ᄀ-ᇿ]+",
    DEEPSEEK_V3_WORDS,
)
LAGUNA = (r"[^\n]+|[\n]+", QWEN2)
LINES = r"[^\n]+|[\n]+"
