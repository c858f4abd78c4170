"""Bounds of a tokenizer.json, checked before the library reads it.

The library takes any: it ends the process where memory, or the stack, is at its end. That is while
it loads a file of a few kilobytes, or at some later text, which grows with each step of the file.
Or it takes hours for a text of some pages.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from tokenizers import Regex, normalizers

from penstock.errors import UnsupportedModel
from penstock.prepare.tokenizer_cost import check_nesting, check_word
from penstock.text.token_table import HIGHEST_ID

LONGEST_PIECE = 4096
"""Characters of a token. The library's tree of them is as deep as the longest."""
MOST_UNIGRAM = 16 << 20
"""Bytes of all tokens that a tree is made of, which takes some 170 times as much. A vocabulary of a
million has 10 MB."""
MOST_STEPS = 64
"""Most steps of each part: normalizer, pre_tokenizer, post_processor, decoder."""
MOST_PATTERN = 64 << 10
"""Characters of all regular expressions together."""
MOST_GROWTH = 128
"""Most times its length that a text may become. Usual files make three bytes of a space."""
MOST_AROUND = 4096
"""Tokens around a text."""
_LEAF = 1 << 31
_MARK = "\ue000"
_LITERAL = re.compile(r"\\[^bBAZzGKkgX0-9]|\[\^?\]?(?:\\.|[^\]\\])*\]")
_AROUND = re.compile(r"[\^$\\]|\(\?[^:]")


class _Model(msgspec.Struct):
    type: str | None = None
    vocab: dict[str, int] | list[tuple[str, float]] | None = None
    max_input_chars_per_word: int | None = None


class _Token(msgspec.Struct):
    id: int
    content: str


class _File(msgspec.Struct):
    model: _Model
    added_tokens: list[_Token] | None = None
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None


def check_tokenizer(content: bytes, where: str) -> None:
    """Raises UnsupportedModel, which names file and field, for a tokenizer.json with which the
    library would take memory without bound."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnsupportedModel(f"{where} can't be read: {error}") from None
    _check_vocabulary(file, where)
    parts = {
        name: list(_steps(getattr(file, name), f"{where}: {name}"))
        for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    }
    _check_patterns([step for steps in parts.values() for step in steps], where)
    before = _growth(parts["normalizer"], f"{where}: normalizer")
    _check_growth(before * _growth(parts["pre_tokenizer"], where), f"{where}: normalizer")
    _check_growth(_growth(parts["decoder"], where), f"{where}: decoder")
    _check_around(parts["post_processor"], f"{where}: post_processor")
    for step in parts["normalizer"]:
        if step.get("precompiled_charsmap"):
            _check_precompiled(step, f"{where}: normalizer: precompiled_charsmap")


def check_pieces(pieces: Collection[str], where: str, *, tree: bool) -> None:
    """tree: whether the library makes one of them. Raises UnsupportedModel."""
    longest = max(map(len, pieces), default=0)
    if longest > LONGEST_PIECE:
        raise UnsupportedModel(
            f"{where} has a token of {longest} characters; {LONGEST_PIECE} at most"
        )
    if tree and (size := sum(len(piece.encode("utf-8", "replace")) for piece in pieces)) > (
        MOST_UNIGRAM
    ):
        raise UnsupportedModel(
            f"{where} has tokens of {size} bytes together; {MOST_UNIGRAM} at most"
        )


def check_character_table(content: bytes, where: str) -> None:
    """SentencePiece's table of characters: the bytes of a double array (their number first), then
    the texts that it points to, each with a zero at its end.

    The library follows the array's numbers without a look at its length, so they are checked
    here.  Source: Darts-clone's units, as SentencePiece's normaliser reads them.
    Raises UnsupportedModel.
    """
    size = int.from_bytes(content[:4], "little")
    try:
        units = np.frombuffer(content, "<u4", size // 4, 4)
        texts = content[4 + size :]
        texts.decode()
    except ValueError as error:
        raise UnsupportedModel(f"{where} is broken: {error}") from None
    if size % 4 or not size or texts[-1:] != b"\0":
        raise UnsupportedModel(f"{where} is broken: its parts don't fit together")
    leaves = units & _LEAF != 0
    offsets = (units >> 10) << ((units & (1 << 9)) >> 6)
    farthest = (np.arange(len(units), dtype=np.uint32) ^ offsets)[~leaves] | 0xFF
    targets = units[leaves] & (_LEAF - 1)
    bounds = np.frombuffer(texts, np.uint8)
    if (farthest >= len(units)).any() or (targets >= len(texts)).any():
        raise UnsupportedModel(f"{where} is broken: it points beyond its end")
    if (bounds[targets] & 0xC0 == 0x80).any():
        raise UnsupportedModel(f"{where} is broken: it points into the middle of a character")
    if max(map(len, texts.split(b"\0"))) > MOST_GROWTH:
        raise UnsupportedModel(f"{where} makes more than {MOST_GROWTH} bytes of a character")


def _check_vocabulary(file: _File, where: str) -> None:
    vocab = file.model.vocab
    if isinstance(vocab, dict):
        _check_ids(vocab.values(), f"{where}: model: vocab")
        check_pieces(vocab, f"{where}: model: vocab", tree=False)
    elif vocab is not None:
        pieces = [piece for piece, _ in vocab]
        check_pieces(pieces, f"{where}: model: vocab", tree=True)
        check_nesting(pieces, f"{where}: model: vocab")
    longest = file.model.max_input_chars_per_word
    check_word(longest, f"{where}: model: max_input_chars_per_word")
    added = file.added_tokens or []
    _check_ids([token.id for token in added], f"{where}: added_tokens")
    check_pieces([token.content for token in added], f"{where}: added_tokens", tree=True)


def _check_ids(ids: Collection[int], where: str) -> None:
    if ids and not 0 <= min(ids) <= max(ids) <= HIGHEST_ID:
        wrong = max(ids) if max(ids) > HIGHEST_ID else min(ids)
        shown = str(wrong) if abs(wrong) < 10**20 else "a number of more than 20 digits"
        raise UnsupportedModel(f"{where} has the id {shown}; 0 to {HIGHEST_ID} are possible")


_INNER = ("normalizers", "pretokenizers", "processors", "decoders")


def _steps(part: Any, where: str) -> Iterator[Mapping[str, Any]]:
    """Yields all steps of a part in order, with those within others."""
    waiting, count = [part], 0
    while waiting:
        step = waiting.pop()
        if not isinstance(step, dict):
            continue  # Null, or what the library refuses.
        count += 1
        if count > MOST_STEPS:
            raise UnsupportedModel(f"{where} has more than {MOST_STEPS} steps")
        yield step
        for name in _INNER:
            if isinstance(step.get(name), list):
                waiting += reversed(step[name])


def _check_patterns(steps: list[Mapping[str, Any]], where: str) -> None:
    size = sum(len(_pattern(step, "Regex") or "") for step in steps)
    if size > MOST_PATTERN:
        raise UnsupportedModel(
            f"{where} has regular expressions of {size} characters; {MOST_PATTERN} at most"
        )


def _pattern(step: Mapping[str, Any], kind: str) -> str | None:
    pattern = step.get("pattern")
    found = pattern.get(kind) if isinstance(pattern, dict) else None
    return found if isinstance(found, str) else None


def _growth(steps: list[Mapping[str, Any]], where: str) -> float:
    """How many bytes may become of one, at most: as if each step met what the others left."""
    growth = 1.0
    for step in steps:
        # A step without a type is taken for what its fields are those of.
        if "pattern" in step and "content" in step:
            growth *= _replaced(step)
        elif not isinstance(step.get("type"), str) or step["type"] == "ByteLevel":
            growth *= 2
        added = str(step.get("prepend") or "")
        if len(added) > MOST_GROWTH:
            raise UnsupportedModel(
                f"{where} puts {len(added)} characters in front; {MOST_GROWTH} at most"
            )
    return growth


def _replaced(step: Mapping[str, Any]) -> float:
    size = len(str(step.get("content") or "").encode("utf-8", "replace"))
    text, regex = _pattern(step, "String"), _pattern(step, "Regex")
    if text:
        return max(1.0, size / len(text.encode("utf-8", "replace")))
    if regex is not None and not _may_match_nothing(regex):
        return max(1.0, size)
    return 1.0 + size  # It is found between any two characters.


def _may_match_nothing(regex: str) -> bool:
    """Whether it may match an empty text somewhere: without a word about what stands around, that
    is everywhere."""
    if _AROUND.search(_LITERAL.sub("", regex)):
        return True
    try:
        nothing = Regex(f"\\A(?:{regex})(?={_MARK})")
        found: str = normalizers.Replace(nothing, "x").normalize_str(_MARK)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # No pattern, or one that never ends: an Exception, or a panic.
        return True
    return found != _MARK


def _check_growth(growth: float, where: str) -> None:
    if growth > MOST_GROWTH:
        raise UnsupportedModel(
            f"{where} may make a text {growth:.3g} times as long; {MOST_GROWTH} times at most"
        )


def _check_around(steps: list[Mapping[str, Any]], where: str) -> None:
    """What a template puts around a text, and how often it puts the text itself."""
    copies = around = 1
    for step in steps:
        special = step.get("special_tokens")
        sizes = {
            name: len(_listed(each.get("ids")))
            for name, each in (special.items() if isinstance(special, dict) else ())
            if isinstance(each, dict)
        }
        for template in (step.get("single"), step.get("pair")):
            pieces = [each for each in _listed(template) if isinstance(each, dict)]
            copies *= max(1, sum("Sequence" in each for each in pieces))
            around += sum(
                sizes.get(str(each["SpecialToken"].get("id")), 0)
                for each in pieces
                if isinstance(each.get("SpecialToken"), dict)
            )
    if around > MOST_AROUND or copies > MOST_GROWTH:
        raise UnsupportedModel(
            f"{where} puts {around} tokens around a text, and the text {copies} times; at most "
            f"{MOST_AROUND}, and {MOST_GROWTH} times"
        )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _check_precompiled(step: Mapping[str, Any], where: str) -> None:
    try:
        content = base64.b64decode(str(step["precompiled_charsmap"]), validate=True)
        check_character_table(content, where)
    except (binascii.Error, ValueError) as error:
        raise UnsupportedModel(f"{where} is broken: {error}") from None
