"""Vocabularies with merges: byte-level BPE, and BPE over text with marks for spaces."""

from __future__ import annotations

import msgspec
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.prepare.gguf_vocabulary import KEY, UNKNOWN, Built, Vocabulary

# The regular expressions that split text into words before byte-level BPE.
#
# They are those of the models' own tokenizers, in the syntax of the tokenizers library (Oniguruma).
# Where llama.cpp has an adapted one, because its engine lacks something, the original counts.

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


SPACE_MARK = "▁"


def byte_level_bpe(vocabulary: Vocabulary) -> Built:
    """BPE as in GPT-2: bytes are written as letters, merges are given."""
    fields = vocabulary.fields
    pre = find_pre_tokenizer(fields.text(f"{KEY}pre", "default"), fields.where)
    if pre.raw:
        return _marked(vocabulary, pre)
    merges = _read_merges(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary.ids, merges, ignore_merges=pre.ignore_merges))
    if fields.flag(f"{KEY}normalizer.nfc", pre.nfc):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre.build()
    tokenizer.decoder = decoders.ByteLevel()
    return Built(tokenizer, add_bos=pre.add_bos, add_sep=pre.add_sep)


def marked_bpe(vocabulary: Vocabulary) -> Built:
    """Gemma 4's: merges as in byte-level BPE, but over text in which marks stand for spaces."""
    return _marked(vocabulary, PRE_TOKENIZERS["gemma4"])


def _marked(vocabulary: Vocabulary, pre: PreTokenizer) -> Built:
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary.ids,
            _read_merges(vocabulary),
            unk_token=unknown_text(vocabulary),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", SPACE_MARK)
    tokenizer.pre_tokenizer = pre.build()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return Built(tokenizer, add_bos=pre.add_bos)


def unknown_text(vocabulary: Vocabulary) -> str | None:
    """The text of the token for what the vocabulary lacks."""
    unknown = vocabulary.special_id("unknown_token_id")
    if unknown is None and UNKNOWN in vocabulary.types:
        unknown = vocabulary.types.index(UNKNOWN)
    return None if unknown is None else vocabulary.tokens[unknown]


def _read_merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    fields, ids = vocabulary.fields, vocabulary.ids
    merges = [_split_merge(merge, fields) for merge in fields.listed(f"{KEY}merges", str)]
    for left, right in merges:  # the library panics at one that isn't known
        if not (left in ids and right in ids):
            raise UnsupportedModel(f"{fields.where}: a merge of {left!r} and {right!r}: no tokens")
        if left + right not in ids:
            raise UnsupportedModel(f"{fields.where}: a merge gives {left + right!r}: no token")
    return merges


def _split_merge(merge: str, fields: Fields) -> tuple[str, str]:
    """A merge is written "left right". The left one may begin with a space itself."""
    space = merge.find(" ", 1)
    if space < 0 or space == len(merge) - 1:
        raise UnsupportedModel(f"{fields.where}: the merge {merge!r} is not two tokens")
    return merge[:space], merge[space + 1 :]


# How text is split into words before byte-level BPE, by the name in `tokenizer.ggml.pre`.
#
# The names and what each stands for are llama.cpp's (the table of pre-tokenizers in its vocabulary
# loader); where a model's own tokenizer.json says the same in its own words, those are used.


class PreTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """patterns: applied one after the other; each isolates its matches in what is left.
    digits: before them, every digit is split off alone.
    ignore_merges: a word that is in the vocabulary is one token, whatever the merges say.
    add_bos: whether BOS is added where the file doesn't say.  nfc: text is normalised to NFC,
    where the file doesn't say.
    add_sep: as add_bos, for what ends an encoder's text.
    raw: the vocabulary holds text with marks for spaces, as SentencePiece's do, and no bytes
    written as letters.
    """

    patterns: tuple[str, ...] = (GPT2,)
    digits: bool = False
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False
    add_sep: bool = False
    raw: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The pre-tokenizer as an object of the tokenizers library, the bytes' mapping to letters
        included."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.patterns == (GPT2,):  # ByteLevel has this pattern built in, and is faster
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
        else:
            steps += [pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns]
            if not self.raw:
                steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)


_KINDS: tuple[tuple[tuple[str, ...], PreTokenizer], ...] = (
    (("default",), PreTokenizer(patterns=DEFAULT)),
    (
        (
            *("gpt-2", "gpt2", "phi-2", "jais", "trillion", "granite-docling", "exaone4"),
            *("gigachat", "a.x-4.0", "mellum", "modern-bert", "jina-es", "jina-de"),
            *("jina-v2-es", "jina-v2-de"),
        ),
        PreTokenizer(),
    ),
    (("roberta-bpe", "jina-v1-en", "jina-v2-code"), PreTokenizer(add_sep=True)),
    (("mpt", "olmo"), PreTokenizer(nfc=True)),  # both are GPT-NeoX's
    (
        ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"),
        PreTokenizer(digits=True),
    ),
    (("command-r",), PreTokenizer(digits=True, nfc=True)),
    (
        (
            *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
            *("lfm2", "jina-v5-nano"),
        ),
        PreTokenizer(patterns=(LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    (
        ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
        PreTokenizer(patterns=(LLAMA3,)),
    ),
    (("jais-2",), PreTokenizer(patterns=(JAIS2,))),
    (("qwen2", "deepseek-r1-qwen"), PreTokenizer(patterns=(QWEN2,), nfc=True)),
    (
        ("stablelm2", "hunyuan", "solar-open", "megrez", "grok-2", "kormo", "f2llmv2"),
        PreTokenizer(patterns=(QWEN2,)),
    ),
    (("qwen35",), PreTokenizer(patterns=(QWEN35,), nfc=True)),
    (("ufakzeka",), PreTokenizer(patterns=(WITHOUT_CONTRACTIONS,))),
    (("laguna",), PreTokenizer(patterns=LAGUNA)),
    (
        ("tekken",),
        PreTokenizer(patterns=(TEKKEN,), ignore_merges=True, add_bos=True),
    ),
    (
        ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
        PreTokenizer(patterns=(GPT4O,)),
    ),
    (
        ("granite-embed-multi-97m",),
        PreTokenizer(patterns=(GPT4O,), ignore_merges=True),
    ),
    (("tiny_aya", "cohere2moe"), PreTokenizer(patterns=TINY_AYA)),
    (("kimi-k2",), PreTokenizer(patterns=(KIMI_K2,))),
    (("deepseek-llm",), PreTokenizer(patterns=DEEPSEEK_LLM)),
    (("deepseek-coder",), PreTokenizer(patterns=DEEPSEEK_CODER)),
    (
        ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
        PreTokenizer(patterns=DEEPSEEK_V3),
    ),
    (("spark2_5",), PreTokenizer(patterns=SPARK)),
    (("youtu",), PreTokenizer(patterns=YOUTU, ignore_merges=True)),
    (("afmoe",), PreTokenizer(patterns=AFMOE)),
    (("minicpm5",), PreTokenizer(patterns=MINICPM5, ignore_merges=True)),
    (
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        PreTokenizer(patterns=(BAILING,)),
    ),
    (("seed-coder",), PreTokenizer(patterns=(SEED_CODER,))),
    (("exaone-moe",), PreTokenizer(patterns=(EXAONE_MOE,))),
    (("falcon",), PreTokenizer(patterns=FALCON)),
    (("bloom", "poro-chat", "gpt3-finnish"), PreTokenizer(patterns=(BLOOM,))),
    (("viking",), PreTokenizer(patterns=(BLOOM, r"\p{N}"))),
    (("chameleon",), PreTokenizer(patterns=CHAMELEON, add_bos=True)),
    (("superbpe",), PreTokenizer(patterns=SUPERBPE)),
    (
        ("gemma4", "granite-embed-multi-311m"),
        PreTokenizer(patterns=(LINES,), raw=True, add_bos=True),
    ),
    (("sarvam-moe",), PreTokenizer(patterns=(LINES,), raw=True)),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: each for names, each in _KINDS for name in names}
"""Pre-tokenizers by the name in the file."""


def find_pre_tokenizer(name: str, where: str) -> PreTokenizer:
    """Raises UnsupportedModel, naming it, for one that isn't known."""
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"{where}: the pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known; "
            f"known: {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]
