"""Tokenizers without a tokenizer.json: SentencePiece's, tiktoken's, tekken, and vocabularies in
text files, converted, against the libraries that the files are for.

sentencepiece_models.json holds small models that sentencepiece 0.2 trained, and the ids and texts
that it makes of texts and ids.
"""

from __future__ import annotations

import base64
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import regex
import transformers

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.hub.cache import is_whole_folder
from penstock.hub.name import HubName
from penstock.hub.selection import select
from penstock.prepare import load_manifest, prepare
from penstock.prepare.hub_tokenizer import HubTokenizer, tokenizer_of_folder
from penstock.prepare.tiktoken_file import is_tiktoken
from penstock.text.token_table import byte_letters
from penstock.text.tokenizer import Tokenizer
from testing.tiny_models import CORPUS, LLAMA_CONFIG, byte_level_tokenizer, write_hub_folder

pytestmark = pytest.mark.timeout(240)

RECORDED = json.loads(Path(__file__).with_name("sentencepiece_models.json").read_text())
CHOOSE = random.Random(4)
TEXTS = [
    *CORPUS,
    "",
    " Hello,  World! ",
    "aaaaaaaaaaaaaaaaaaa =====----- 1234567",
    *("".join(CHOOSE.choices("abctheéß 東\n .,'019\t", k=40)) for _ in range(60)),
]


def opened(folder: Path, **settings: Any) -> tuple[Tokenizer, HubTokenizer]:
    stated = Fields(settings, str(folder / "tokenizer_config.json"))
    found = tokenizer_of_folder(folder, stated, 1 << 20)
    return Tokenizer(found.json, add_bos=found.adds_bos, bos_token_id=found.bos_id), found


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special=False, parse_special=False)


# SentencePiece.


def model_folder(folder: Path, name: str) -> Path:
    content = base64.b64decode(RECORDED["models"][name]["model"])
    (folder / "tokenizer.model").write_bytes(content)
    return folder


@pytest.mark.parametrize("name", RECORDED["models"])
def test_sentencepieces_own_ids(tmp_path: Path, name: str) -> None:
    """What differs is as in transformers: a word behind a token that the user defined gets a space
    in front if those at the beginning do, and Unigram finds control tokens in text."""
    tokenizer, _ = opened(model_folder(tmp_path, name))
    recorded, compared = RECORDED["models"][name], 0
    for text, ids, back in zip(RECORDED["texts"], recorded["ids"], recorded["texts"], strict=True):
        apart = "<sep>" in text and name != "bpe, no prefix"
        control = ("<s>" in text or "[INST]" in text) and name.startswith("unigram")
        if not apart and not control:
            assert plain_ids(tokenizer, text) == ids, text
            compared += 1
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        assert decoded.replace("<unk>", " ⁇ ") == back.replace("<unk>", " ⁇ ")
    assert compared >= len(RECORDED["texts"]) - 3


def test_special_tokens_of_a_sentencepiece_model(tmp_path: Path) -> None:
    tokenizer, found = opened(model_folder(tmp_path, "bpe, no prefix"))
    assert (found.pad_id, found.eos_id, found.bos_id) == (0, 1, 2)
    assert found.adds_bos
    assert tokenizer.encode("a")[0] == 2
    assert tokenizer.encode("[INST]", add_special=False) == [tokenizer.special_tokens["[INST]"]]


def test_settings_name_tokens_behind_a_models_own(tmp_path: Path) -> None:
    """DeepSeek's and many a fine-tuned Llama's: added_tokens.json, or added_tokens_decoder."""
    model_folder(tmp_path, "bpe, bytes")
    size = len(json.loads(opened(tmp_path)[1].json)["model"]["vocab"])
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|im_end|>": size + 2}))
    decoder = {str(size + 5): {"content": "<|im_start|>", "special": True, "rstrip": True}}
    settings = {"added_tokens_decoder": decoder, "eos_token": "<|im_end|>", "add_bos_token": False}
    tokenizer, found = opened(tmp_path, tokenizer_class="LlamaTokenizer", **settings)
    assert (found.eos_id, found.highest_id, found.adds_bos) == (size + 2, size + 5, False)
    turn = tokenizer.encode("<|im_start|>  user<|im_end|>")
    assert (turn[0], turn[-1]) == (size + 5, size + 2)
    assert turn == tokenizer.encode("<|im_start|>user<|im_end|>")
    assert tokenizer.decode([size + 3]) == ""


def test_legacy_false_marks_only_a_texts_beginning(tmp_path: Path) -> None:
    model_folder(tmp_path, "bpe, bytes")
    behind = [opened(tmp_path, legacy=old)[0].encode("<s>fox") for old in (True, False)]
    fox = plain_ids(opened(tmp_path)[0], "fox")
    assert behind[0][-len(fox) :] == fox
    assert behind[1][-len(fox) :] != fox


UNIGRAMS = [name for name in RECORDED["models"] if name.startswith("unigram")]


@pytest.mark.parametrize("name", UNIGRAMS)
@pytest.mark.parametrize(
    ("kind", "file"), [("DebertaV2Tokenizer", "spm.model"), ("AlbertTokenizer", "spiece.model")]
)
def test_sentencepiece_models_of_encoders(tmp_path: Path, kind: str, file: str, name: str) -> None:
    """SentencePiece's own ids of a folded text, between the class's tokens."""
    model_folder(tmp_path, name).joinpath("tokenizer.model").rename(tmp_path / file)
    tokenizer, found = opened(tmp_path, tokenizer_class=kind)
    compared = 0
    for text, ids in zip(RECORDED["texts"], RECORDED["models"][name]["ids"], strict=True):
        folded = text.lower().isascii() and text == text.lower()
        if not any(mark in text for mark in ("<", "[", "''", "``")) and (
            kind == "DebertaV2Tokenizer" or folded
        ):
            assert plain_ids(tokenizer, text) == ids, text
            compared += 1
    assert compared >= 2
    begin, end, mask = (tokenizer.special_tokens[each] for each in ("[CLS]", "[SEP]", "[MASK]"))
    assert mask == found.mask_id
    ids = plain_ids(tokenizer, "a fox")
    assert tokenizer.encode("a fox") == [begin, *ids, end]
    if kind == "AlbertTokenizer":
        assert plain_ids(tokenizer, "Ä ``Fox''") == plain_ids(tokenizer, 'a "fox"')
        kept = opened(tmp_path, tokenizer_class=kind, keep_accents=True, do_lower_case=False)[0]
        assert plain_ids(kept, "Ä Fox") != ids
    else:
        small = opened(tmp_path, tokenizer_class=kind, do_lower_case=True)[0]
        assert plain_ids(small, "A FOX") == ids


# tiktoken and tekken.


def ranks() -> dict[bytes, int]:
    """Bytes first, then what byte-level BPE merged, in its order."""
    letters = byte_letters()
    model = json.loads(byte_level_tokenizer().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    texts = [bytes(letters[each] for each in token) for token in tokens if token[0] in letters]
    known = [text for text in texts if b"<|" not in text]
    return {text: rank for rank, text in enumerate(known)}


def by_rank(known: dict[bytes, int], pattern: str, text: str) -> list[int]:
    """tiktoken's algorithm, slowly: the neighbours of the lowest joined rank are joined."""
    found = []
    for word in regex.findall(pattern, text):
        parts = [bytes([byte]) for byte in word.encode()]
        while True:
            joined = [known.get(a + b, 1 << 30) for a, b in pairwise(parts)]
            if min(joined, default=1 << 30) == 1 << 30:
                break
            at = joined.index(min(joined))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        found += [known[part] for part in parts]
    return found


CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"
QWEN = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
START = r"[^\r\n\p{L}\p{N}]?"
KIMI = (
    rf"[\p{{Han}}]+|{START}[{UPPER}&&[^\p{{Han}}]]*[{LOWER}&&[^\p{{Han}}]]+{CONTRACTIONS}?"
    rf"|{START}[{UPPER}&&[^\p{{Han}}]]+[{LOWER}&&[^\p{{Han}}]]*{CONTRACTIONS}?|\p{{N}}{{1,3}}|{REST}"
)
TEKKEN = (
    rf"{START}[{UPPER}]*[{LOWER}]+|{START}[{UPPER}]+[{LOWER}]*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tiktoken_file(folder: Path, name: str, known: dict[bytes, int]) -> None:
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in known.items()]
    (folder / name).write_text("".join(lines))


@pytest.mark.parametrize(
    ("file", "kind", "pattern"),
    [
        ("tokenizer.model", "PreTrainedTokenizerFast", LLAMA3),
        ("tokenizer.model", None, LLAMA3),
        ("qwen.tiktoken", "QWenTokenizer", QWEN),
        ("tiktoken.model", "TikTokenTokenizer", KIMI),
    ],
)
def test_tiktokens_ids(tmp_path: Path, file: str, kind: str | None, pattern: str) -> None:
    known = ranks()
    tiktoken_file(tmp_path, file, known)
    end = {str(len(known) + 7): {"content": "<|end|>", "special": True}}
    tokenizer, found = opened(
        tmp_path, tokenizer_class=kind, added_tokens_decoder=end, eos_token="<|end|>"
    )
    assert found.eos_id == found.highest_id == len(known) + 7
    version = regex.V1 if "&&" in pattern else 0
    for text in TEXTS:
        assert plain_ids(tokenizer, text) == by_rank(known, regex.compile(pattern, version), text)
        assert tokenizer.decode(plain_ids(tokenizer, text)) == text
    assert tokenizer.encode("<|end|>")[-1] == found.eos_id


def tekken_file(folder: Path, known: dict[bytes, int], **changes: Any) -> None:
    config = {"pattern": TEKKEN, "default_vocab_size": len(known) + 20 - 3}
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in known.items()
    ]
    file = {"config": config | {"default_num_special_tokens": 20} | changes, "vocab": vocab}
    (folder / "tekken.json").write_text(json.dumps(file))


def test_tekkens_ids(tmp_path: Path) -> None:
    """Special tokens come first, and the last ones of the vocabulary aren't used."""
    known = ranks()
    tekken_file(tmp_path, known)
    tokenizer, found = opened(tmp_path)
    used = {token: rank for token, rank in known.items() if rank < len(known) - 3}
    for text in TEXTS:
        ids = by_rank(used, regex.compile(TEKKEN), text)
        assert plain_ids(tokenizer, text) == [each + 20 for each in ids]
    assert (found.bos_id, found.eos_id, found.pad_id, found.adds_bos) == (1, 2, 11, True)
    assert tokenizer.encode("[INST]", add_special=False) == [3]


# Vocabularies in text files, beside transformers' own classes.


def write_bpe(folder: Path) -> None:
    model = json.loads(byte_level_tokenizer().to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(merges) + "\n")


def write_words(folder: Path, first: list[str]) -> None:
    words = ["the", "quick", "brown", "fox", "jump", "##ing", "lazy", "dog", "hello", *"!.,'12東"]
    letters = [each for letter in "abcdefghijklmnopqrstuvwxyz" for each in (letter, f"##{letter}")]
    (folder / "vocab.txt").write_text("\n".join([*first, *words, *letters]) + "\n")


BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MPNET = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("GPT2Tokenizer", {}),
        ("GPT2Tokenizer", {"add_prefix_space": True}),
        ("Qwen2Tokenizer", {"bos_token": None, "eos_token": "<|im_end|>"}),
        ("RobertaTokenizer", {}),
        ("WhisperTokenizer", {}),
        ("BertTokenizer", {}),
        ("BertTokenizer", {"do_lower_case": False, "tokenize_chinese_chars": False}),
        ("MPNetTokenizer", {}),
    ],
)
def test_text_files_as_transformers_reads_them(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    settings = {"tokenizer_class": kind, **settings}
    if kind in ("BertTokenizer", "MPNetTokenizer"):
        write_words(tmp_path, BERT if kind == "BertTokenizer" else MPNET)
    else:
        write_bpe(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = getattr(transformers, kind).from_pretrained(tmp_path)
    tokenizer, found = opened(tmp_path, **settings)
    around = kind != "WhisperTokenizer"  # a transcription writes its first tokens itself
    for text in TEXTS:
        ids = theirs(text, add_special_tokens=around)["input_ids"]
        assert tokenizer.encode(text) == ids, text
    assert found.eos_id == theirs.eos_token_id


def test_a_releases_own_vocabulary(tmp_path: Path, minilm_folder: Path) -> None:
    settings = json.loads((minilm_folder / "tokenizer_config.json").read_text())
    (tmp_path / "vocab.txt").write_bytes((minilm_folder / "vocab.txt").read_bytes())
    made, given = opened(tmp_path, **settings)[0], opened(minilm_folder, **settings)[0]
    for text in TEXTS:
        assert made.encode(text) == given.encode(text)
    assert made.encode_typed("one", "two") == given.encode_typed("one", "two")


# What is refused, and the way of the files.


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("XLMRobertaTokenizer", "XLMRobertaTokenizer in .* none that this file is converted for"),
        ("T5TokenizerFast", "LlamaTokenizer, CodeLlamaTokenizer"),
    ],
)
def test_a_class_that_is_not_known_is_named(tmp_path: Path, kind: str, said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        opened(model_folder(tmp_path, "unigram"), tokenizer_class=kind)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"no tokenizer\.json, nor a file.*tokenizer\.model"):
        opened(tmp_path)
    tiktoken_file(tmp_path, "tiktoken.model", ranks())
    with pytest.raises(UnsupportedModel, match=r"names no special tokens \(added_tokens_decoder"):
        opened(tmp_path, tokenizer_class="TikTokenTokenizer")
    (tmp_path / "tiktoken.model").unlink()
    write_bpe(tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(UnsupportedModel, match=r"vocab\.json needs a merges\.txt"):
        opened(tmp_path, tokenizer_class="GPT2Tokenizer")
    tekken_file(tmp_path, ranks(), pattern=".")
    with pytest.raises(UnsupportedModel, match="its pattern of words is not the one"):
        opened(tmp_path)


def test_merges_without_bound_are_refused(tmp_path: Path) -> None:
    """Tokens within bounds of their own, all of whose cuts are merges."""
    tiktoken_file(tmp_path, "tokenizer.model", {b"a" * size: size for size in range(1, 1000)})
    with pytest.raises(UnsupportedModel, match="merges may take 332833500 bytes; 134217728 at m"):
        opened(tmp_path, added_tokens_decoder={"1000": {"content": "<end>"}})


def test_a_rank_below_tekkens_first_is_refused(tmp_path: Path) -> None:
    tekken_file(tmp_path, {b"a": -990}, default_num_special_tokens=1000)
    with pytest.raises(UnsupportedModel, match="has the rank -990; 0 is the first"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "stated",
    [{"eos_token": "\ud800"}, {"added_tokens_decoder": {"900": {"content": "\ud800"}}}],
)
def test_half_of_a_character_is_no_token(tmp_path: Path, stated: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=r"the token '\\ud800', which is half of a char"):
        opened(model_folder(tmp_path, "bpe"), **stated)


def test_damaged_files_give_a_known_error(tmp_path: Path) -> None:
    choose = random.Random(9)
    tekken_file(tmp_path, ranks())
    tiktoken_file(tmp_path, "x", ranks())
    sources = {
        "tokenizer.model": base64.b64decode(RECORDED["models"]["unigram, bytes"]["model"]),
        "tekken.json": (tmp_path / "tekken.json").read_bytes(),
        "tiktoken.model": (tmp_path / "x").read_bytes(),
    }
    refused = 0
    for number in range(150):
        name = choose.choice(list(sources))
        content = bytearray(sources[name])
        for _ in range(choose.randrange(1, 4)):
            content[choose.randrange(min(len(content), 600))] = choose.randrange(256)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_bytes(content[: choose.choice([len(content), len(content) // 2])])
        try:
            opened(folder, added_tokens_decoder={"900": {"content": "<end>"}})
        except UnsupportedModel:
            refused += 1
    assert refused > 20


def test_a_folder_is_prepared_and_made_again_when_its_vocabulary_changes(tmp_path: Path) -> None:
    folder = write_hub_folder(tmp_path / "m", config=LLAMA_CONFIG)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert not is_whole_folder(folder)
    model_folder(folder, "bpe, no prefix")
    assert is_whole_folder(folder)
    first = prepare(str(folder), cache_dir=str(tmp_path / "cache"))
    manifest = load_manifest(first)
    assert manifest.generation.bos_token_id == 2
    assert 1 in manifest.generation.eos_token_ids
    model_folder(folder, "bpe, bytes")
    second = prepare(str(folder), cache_dir=str(tmp_path / "cache"))
    assert second != first
    files = [(each / "tokenizer.json").read_bytes() for each in (first, second)]
    assert files[0] != files[1]


def test_a_vocabulary_that_is_not_read_needs_no_merges(tmp_path: Path) -> None:
    folder = write_hub_folder(tmp_path / "m", config=LLAMA_CONFIG)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text("{}")
    assert not is_whole_folder(folder)
    assert is_whole_folder(model_folder(folder, "bpe"))


def test_pull_takes_them_only_where_there_is_no_tokenizer_json() -> None:
    name = HubName("a/b", "main", None)
    files = ["config.json", "model.safetensors", "tokenizer.model", "vocab.json", "merges.txt"]
    assert set(select(name, files).files) == set(files)
    assert "tokenizer.model" not in select(name, [*files, "tokenizer.json"]).files


def test_which_files_are_tiktokens(tmp_path: Path) -> None:
    tiktoken_file(tmp_path, "x", ranks())
    assert is_tiktoken((tmp_path / "x").read_bytes())
    assert not is_tiktoken(base64.b64decode(RECORDED["models"]["bpe"]["model"]))
    assert not is_tiktoken(msgspec.json.encode({"a": 1}))
