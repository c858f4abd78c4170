"""Vocabularies of GGUF files against transformers' own tokenizers, built from the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from penstock.errors import UnsupportedModel
from tests.met import met
from tests.shared.formats.gguf_vocabularies import (
    CASES,
    TEXTS,
    Case,
    built,
    table_of_characters,
    written,
)

pytestmark = pytest.mark.timeout(240)

ANY = st.text(
    st.one_of(
        st.sampled_from(" \t\n\r'0123456789sStTrReEvVdDlLmM.,!?<=>$+日本é½Ⅷ#▁"),
        st.characters(codec="utf-8", exclude_categories=["Cs", "Cn"]),
    ),
    max_size=40,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vocabularies")


@cache
def _pair(folder: Path, name: str) -> tuple[Tokenizer, Any, Case]:
    case = CASES[name]()
    path = written(folder / f"{len(list(folder.iterdir()))}.gguf", case.add)
    return built(path, encoder=case.encoder)[0], case.theirs, case


@pytest.mark.parametrize("name", CASES)
def test_ids_are_those_of_transformers(folder: Path, name: str) -> None:
    ours, theirs, case = _pair(folder, name)
    seen = set()
    for text in TEXTS:
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False).ids == ids, text
        seen.update(ids)
        assert ours.decode(ids) == theirs.backend_tokenizer.decode(ids)
        if case.encoder:
            framed = theirs(text)["input_ids"]
            assert ours.encode(text).ids == framed
            pair = theirs(text, "and this")
            assert ours.encode(text, "and this").ids == pair["input_ids"]
    assert len(seen) > 70, "the texts use much of the vocabulary"


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=ANY)
@pytest.mark.parametrize("name", CASES)
def test_any_text(folder: Path, name: str, text: str) -> None:
    ours, theirs, _ = _pair(folder, name)
    ids = theirs(text, add_special_tokens=False)["input_ids"]
    met("several tokens", len(ids) > 1)
    assert ours.encode(text, add_special_tokens=False).ids == ids


def test_types_of_two_texts(folder: Path) -> None:
    ours, theirs, _ = _pair(folder, "WordPiece")
    pair = theirs("the first", "and the second")
    assert ours.encode("the first", "and the second").type_ids == pair["token_type_ids"]


def _damaged(change: Callable[[bytearray], object]) -> bytes:
    table = bytearray(table_of_characters())
    change(table)
    return bytes(table)


def _unit(table: bytearray, index: int, value: int) -> None:
    table[4 + 4 * index : 8 + 4 * index] = value.to_bytes(4, "little")


TABLES = {
    "too short": b"\1\0",
    "an array longer than all": _damaged(lambda t: t.__setitem__(slice(0, 4), b"\xff\xff\xff\x7f")),
    "an array of odd length": _damaged(lambda t: t.__setitem__(0, t[0] | 1)),
    "no end": _damaged(lambda t: t.pop()),
    "texts that aren't UTF-8": _damaged(lambda t: t.__setitem__(slice(-3, None), b"\xff\xff\0")),
    "a node beyond the array": _damaged(lambda t: _unit(t, 0, 0x1FFFFF << 10)),
    "a text beyond the texts": _damaged(lambda t: _unit(t, 5, 1 << 31 | 1 << 20)),
    "the middle of a character": _damaged(lambda t: _unit(t, 5, 1 << 31 | 9)),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_broken_table_of_characters_is_refused(tmp_path: Path, case: str) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("t5")
        writer.add_token_list(["<unk>", "</s>", "▁a"])
        writer.add_token_types([2, 3, 1])
        writer.add_token_scores([0.0, 0.0, -1.0])
        writer.add_eos_token_id(1)
        writer.add_precompiled_charsmap(TABLES[case])

    with pytest.raises(UnsupportedModel, match=r"precompiled_charsmap is broken"):
        built(written(tmp_path / "t5.gguf", add))


ENDS = {
    "what the file says": (["<s>", "<e>", "<t>", "<m>"], {"eos": 1, "eot": 2, "eom": 3}, (1, 2, 3)),
    "one for all": (["<s>", "<e>"], {"eos": 1, "eot": 1}, (1,)),
    "a turn's end by its text": (["<|end|>", "</s>", "<|user|>"], {"eos": 1}, (1, 0)),
    "Llama 3's": (["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"], {"eos": 1}, (1, 2, 0)),
    "a document's end beside a turn's": (["<|endoftext|>", "<|im_end|>"], {"eos": 1}, (1, 0)),
    "a document's end where both others are stated": (
        ["<|end_of_text|>", "<t>", "<m>"],
        {"eos": 1, "eot": 1, "eom": 2},
        (1, 2, 0),
    ),
    "one that is stated counts alone": (["<|im_end|>", "<e>", "<t>"], {"eos": 1, "eot": 2}, (1, 2)),
    "the end of a channel": (["<|end|>", "<|return|>", "<|call|>"], {"eos": 2}, (2, 1)),
    "none": (["<a>", "<b>"], {}, ()),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_ends_an_answer(tmp_path: Path, case: str) -> None:
    controls, stated, wanted = ENDS[case]

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([*controls, "a", "b", "ab", "<|im_end|>" * 2])
        writer.add_token_types([*[3] * len(controls), 1, 1, 1, 1])
        writer.add_token_merges(["a b"])
        for name, token in stated.items():
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)

    assert built(written(tmp_path / "m.gguf", add))[1].end_ids == wanted


def test_only_an_end_of_a_call_is_of_the_user_s_type(tmp_path: Path) -> None:
    """Gemma's vocabularies have </s> as HTML."""
    texts = ["<eos>", "<|tool_response>", "</s>", "<|endoftext|>", "<|im_end|>"]

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([*texts, "a", "b", "ab"])
        writer.add_token_types([3, 4, 4, 1, 4, 1, 1, 1])
        writer.add_token_merges(["a b"])
        writer.add_eos_token_id(0)

    assert built(written(tmp_path / "m.gguf", add))[1].end_ids == (0, 1)
