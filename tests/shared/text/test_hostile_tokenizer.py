"""A tokenizer.json that wants to do harm, or is broken, is refused with file and field named, and
otherwise does what it says in bounded memory.

Each runs in a process of its own, with little memory to take: the library ends the process where
it has none left, and so it would end a gateway.
"""

from __future__ import annotations

import base64
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import UnsupportedModel
from penstock.prepare import tokenizer_cost
from penstock.prepare.tokenizer_bounds import check_pieces, check_tokenizer
from penstock.prepare.tokenizer_cost import check_nesting
from penstock.text.tokenizer import Tokenizer
from testing.tiny_models import byte_level_tokenizer, sentencepiece_tokenizer

pytestmark = pytest.mark.timeout(240)

RELEASES = os.environ.get("PENSTOCK_RELEASES", "")

PROGRAM = """
import resource, sys
from penstock.errors import InvalidRequest, UnsupportedModel
from penstock.formats.fields import Fields
from penstock.prepare.hub_tokenizer import read_tokenizer
from penstock.text.tokenizer import Tokenizer
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for line in sys.stdin.buffer:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    resource.setrlimit(resource.RLIMIT_CPU, (int(before) + 8, resource.RLIM_INFINITY))
    try:
        found = read_tokenizer(line, Fields({}, "m/tokenizer_config.json"))
        tokenizer = Tokenizer.from_bytes(found.json, add_bos=False, bos_token_id=None)
        tokenizer.visible_bytes(True)
        for text in ("ab a b \\u00e9 x" * 20, "a" * 5000):
            tokenizer.decode(tokenizer.encode(text)[:2000])
        print("fine")
    except InvalidRequest as error:
        print("refused a text:", str(error)[:200].replace("\\n", " "))
    except UnsupportedModel as error:
        print(str(error)[:500].replace("\\n", " "))
    sys.stdout.flush()
"""

BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], "byte_fallback": False}


def _file(**parts: Any) -> dict[str, Any]:
    return {"version": "1.0", "added_tokens": [], "model": BPE, **parts}


def _model(**changes: Any) -> dict[str, Any]:
    return _file(model={**BPE, **changes})


def _added(number: int, content: str, *, normalized: bool = False) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "special": True}
    return {"id": number, "content": content, "normalized": normalized, **flags}


def _replace(content: str, times: int = 1, **pattern: str) -> dict[str, Any]:
    step = {"type": "Replace", "pattern": pattern, "content": content}
    return {"type": "Sequence", "normalizers": [step] * times}


def _split(regex: str) -> dict[str, Any]:
    pattern = {"Regex": regex}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def _table(units: bytes, texts: bytes) -> dict[str, Any]:
    content = base64.b64encode(len(units).to_bytes(4, "little") + units + texts).decode()
    return _file(normalizer={"type": "Precompiled", "precompiled_charsmap": content})


def _unigram(*pieces: str) -> dict[str, Any]:
    return _file(model={"type": "Unigram", "unk_id": 0, "vocab": [[p, -1.0] for p in pieces]})


def _around(single: list[Any], ids: int) -> dict[str, Any]:
    special = {"a": {"id": "a", "ids": [0] * ids, "tokens": ["a"] * ids}}
    pair = [_TEXT, {"Sequence": {"id": "B", "type_id": 1}}]
    kind = {"type": "TemplateProcessing", "single": single, "pair": pair}
    return _file(post_processor={**kind, "special_tokens": special})


_TEXT = {"Sequence": {"id": "A", "type_id": 0}}
_A = {"SpecialToken": {"id": "a", "type_id": 0}}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_WIDE = "|".join(f"[\\p{{L}}\\p{{N}}&&[^\\p{{Lu}}{i}]]" for i in range(5000))

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "a huge id": (_model(vocab={"a": 0, "b": 2**32 - 1}, merges=[]), "model: vocab has the id 429"),
    "a negative id": (_model(vocab={"a": -1}, merges=[]), "model: vocab has the id -1"),
    "a huge id of another kind": (
        _file(model={"type": "WordLevel", "vocab": {"a": 3 * 10**9}, "unk_token": "a"}),
        "model: vocab has the id 3000000000",
    ),
    "an added huge id": (_file(added_tokens=[_added(2**31, "<x>")]), "added_tokens has the id 214"),
    "an id that is a text": (_model(vocab={"a": "0"}), "can't be read: Expected"),
    "a deep tree": (_unigram("<unk>", "a" * 2_000_000), "a token of 2000000 characters; 4096"),
    "a large tree": (
        _unigram("<unk>", *(chr(0x4E00 + i) * 4000 for i in range(2000))),
        "tokens of 24000005 bytes together",
    ),
    "pieces that begin one another": (
        _unigram("<unk>", *("a" * n for n in range(1, 4001))),
        "a piece of 4000 bytes and the 3999 pieces that it begins with have 8002000 bytes",
    ),
    "words without end": (
        _file(
            model={
                "type": "WordPiece",
                "vocab": {"[UNK]": 0, "a": 1, "##a": 2},
                "unk_token": "[UNK]",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 10**6,
            }
        ),
        "model: max_input_chars_per_word is 1000000; 512 at most",
    ),
    "a long added token": (
        _file(added_tokens=[_added(3, "a" * 3_000_000)]),
        "added_tokens has a token of 3000000 characters",
    ),
    "a text that explodes": (
        _file(normalizer=_replace("a" * 10**6, String="a")),
        "normalizer may make a text 1e+06 times as long; 128 times at most",
    ),
    "steps that explode": (
        _file(normalizer=_replace("a" * 100, 6, String="a")),
        "normalizer may make a text 1e+12 times as long",
    ),
    "steps that explode on nothing": (
        _file(normalizer=_replace("a" * 20, 8, Regex="c*")),
        "normalizer may make a text 3.78e+10 times as long",
    ),
    "steps that explode and don't say what they are": (
        _file(normalizer={"normalizers": [{"pattern": {"String": "a"}, "content": "a" * 20}] * 8}),
        "normalizer may make a text",
    ),
    "an added token that explodes": (
        _file(
            added_tokens=[_added(3, "aaaa", normalized=True)],
            normalizer=_replace("a" * 100, 4, String="a"),
        ),
        "normalizer may make a text 1e+08 times as long",
    ),
    "an answer that explodes": (
        _file(
            decoder={
                "type": "Sequence",
                "decoders": _replace("a" * 100, 6, String="a")["normalizers"],
            }
        ),
        "decoder may make a text 1e+12 times as long",
    ),
    "bytes of bytes": (
        _file(pre_tokenizer={"type": "Sequence", "pretokenizers": [_BYTES] * 40}),
        "may make a text 1.1e+12 times as long",
    ),
    "a long beginning": (
        _file(normalizer={"type": "Prepend", "prepend": "a" * 10**6}),
        "normalizer puts 1000000 characters in front",
    ),
    "many steps": (
        _file(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}] * 10**5}),
        "normalizer has more than 64 steps",
    ),
    "a table without end": (_table(b"\xff\xff\xff\x7f" * 256, b"a\0"), "it points beyond its end"),
    "half a table": (
        _file(
            normalizer={
                "type": "Precompiled",
                "precompiled_charsmap": base64.b64encode(b"\xff\xff\xff\x7fabc").decode(),
            }
        ),
        "normalizer: precompiled_charsmap is broken",
    ),
    "no table": (
        _file(normalizer={"type": "Precompiled", "precompiled_charsmap": "?"}),
        "normalizer: precompiled_charsmap is broken",
    ),
    "a table that explodes": (
        _table(np.zeros(256, "<u4").tobytes(), b"a" * 10**6 + b"\0"),
        "makes more than 128 bytes of a character",
    ),
    "much around a text": (_around([*[_A] * 10, _TEXT], 10**6), "puts 10000001 tokens around"),
    "a text many times": (_around([_TEXT] * 10**5, 1), "and the text 200000 times"),
    "a long pattern": (_file(pre_tokenizer=_split(_WIDE)), "has regular expressions of 138889 ch"),
    "a deep pattern": (_file(pre_tokenizer=_split("(" * 5000 + ")" * 5000)), "can't be read"),
    "a deep file": (
        _file(oddity=None, decoder=json.loads("[" * 500 + "]" * 500)),
        "can't be read",
    ),
    "a merge that isn't there": (_model(merges=["a c"]), "can't be read"),
    "a prefix longer than tokens": (_model(continuing_subword_prefix="xx"), "can't be read"),
    "a step of no length": (
        _file(pre_tokenizer={"type": "FixedLength", "length": 0}),
        "refused a text",
    ),
    "endless padding": (
        _file(
            padding={
                "strategy": {"Fixed": 10**15},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "a",
            }
        ),
        "fine",
    ),
}


def test_each_is_refused_or_works() -> None:
    lines = "\n".join(json.dumps(case) for case, _ in CASES.values())
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=lines,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "RUST_BACKTRACE": "0"},
    )
    answers = ran.stdout.splitlines()
    assert len(answers) == len(CASES), (list(CASES)[len(answers)], ran.stderr[-2000:])
    for (name, (_, reason)), answer in zip(CASES.items(), answers, strict=True):
        assert reason in answer, (name, answer)
        assert "tokenizer.json" in answer or answer == "fine", name


USUAL = {
    "a mark for a space": _replace("\u2581", String=" "),
    "two spaces": _replace(" ", 8, Regex=" {2,}"),
    "punctuation": _replace("", 8, Regex=r"[!\"#$%&'()*+,-./:;<=>?@\[\\\]^_`{|}~]"),
    "words": _replace("<|tab|>", String="\t"),
    "white space": _replace(" ", 8, Regex=r"\s+"),
}


@pytest.mark.parametrize("kind", USUAL)
def test_what_releases_have_is_taken(kind: str) -> None:
    check_tokenizer(json.dumps(_file(normalizer=USUAL[kind])).encode(), "x")


def test_usual_tokenizers_are_taken() -> None:
    for tokenizer in (byte_level_tokenizer(), sentencepiece_tokenizer()):
        check_tokenizer(tokenizer.to_str().encode(), "x")


def nested(pieces: Iterable[str]) -> int:
    """Bytes of the pieces that one text begins with, at most: by looking at each pair."""
    sizes = {each: len(each.encode()) for each in pieces}
    return max(sum(sizes[begin] for begin in sizes if each.startswith(begin)) for each in sizes)


@pytest.mark.parametrize("seed", range(20))
def test_the_bytes_that_one_text_begins_with_are_counted(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = random.Random(seed)
    pieces = ["".join(choose.choices("abé", k=choose.randint(1, 9))) for _ in range(60)]
    most = nested(pieces)
    monkeypatch.setattr(tokenizer_cost, "MOST_NESTED", most)
    check_nesting(pieces, "m.gguf")
    monkeypatch.setattr(tokenizer_cost, "MOST_NESTED", most - 1)
    with pytest.raises(UnsupportedModel, match=f"m.gguf: a piece of .* have {most} bytes"):
        check_nesting(pieces, "m.gguf")


def test_what_may_just_be_costs_little() -> None:
    """Of both kinds, in processor time: with what the bounds leave, and the worst text."""
    longest = math.isqrt(2 * tokenizer_cost.MOST_NESTED) - 1
    pieces = _unigram("<unk>", *("a" * n for n in range(1, longest + 1)))
    words = CASES["words without end"][0]
    words["model"]["max_input_chars_per_word"] = tokenizer_cost.MOST_OF_A_WORD
    for case, words_of in ((pieces, 5000), (words, tokenizer_cost.MOST_OF_A_WORD)):
        content = json.dumps(case).encode()
        check_tokenizer(content, "x")
        tokenizer = Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)
        text = " ".join(["a" * words_of] * (5000 // words_of))
        begun = time.thread_time()
        tokenizer.encode(text, most=10_000)
        assert time.thread_time() - begun < 2, "13 s without bounds"


@pytest.mark.skipif(not RELEASES, reason="no files of releases (PENSTOCK_RELEASES)")
def test_vocabularies_of_releases_are_far_below() -> None:
    """Whatever kind of model they are of, as if it were Unigram."""
    found = 0
    for file in sorted(Path(RELEASES).rglob("tokenizer.json")):
        vocab = json.loads(file.read_bytes())["model"]["vocab"]
        pieces = [each if isinstance(each, str) else each[0] for each in vocab]
        check_nesting(pieces, str(file))
        found += 1
    assert found


def test_a_gguf_files_tokens_have_the_same_bounds() -> None:
    with pytest.raises(UnsupportedModel, match=r"m\.gguf has a token of 4097 characters"):
        check_pieces(["a", "b" * 4097], "m.gguf", tree=False)
