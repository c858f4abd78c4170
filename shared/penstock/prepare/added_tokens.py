"""Tokens that other files of the tokenizer's folder add to it, or describe further.

Source of the files, and of what counts: how transformers opens a tokenizer. With
`added_tokens_decoder` in tokenizer_config.json, the older files don't count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.small_file import read_json
from penstock.prepare.inputs import ADDED_TOKENS, MAX_JSON_BYTES, SPECIAL_TOKENS
from penstock.text.token_table import HIGHEST_ID

_DECODER = "added_tokens_decoder"
_LISTS = ("extra_special_tokens", "additional_special_tokens")
_NAMED = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token"),
    "mask_token",
)
"""Settings whose tokens get their ids first, in this order."""


def add_stated_tokens(backend: Backend, path: Path, settings: Fields) -> bool:
    """Gives a tokenizer.json's backend the tokens that other files of its folder state and it
    lacks, or has with other properties. Returns whether there are any. settings: of
    tokenizer_config.json. Raises UnsupportedModel."""
    known = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    texts = {token.content for token in backend.get_added_tokens_decoder().values()}
    new = [token for token in _in_decoder(settings) if repr(token) not in known]
    older = {} if _DECODER in settings else json_of(path / SPECIAL_TOKENS)
    special = list(_special(older, settings.values))
    if _DECODER not in settings:
        named = {token.content for token in special}
        new += [
            added_token(text, ADDED_TOKENS, normalized=text not in named, special=text in named)
            for text, _ in sorted(
                json_of(path / ADDED_TOKENS).items(), key=lambda item: id_of(item[1], ADDED_TOKENS)
            )
            if text not in texts
        ]
    texts |= {token.content for token in new}
    for token in special:
        if token.content not in texts:
            new.append(token)
            texts.add(token.content)
    if new:
        backend.add_tokens(new)
    return bool(new)


def _in_decoder(settings: Fields) -> Iterator[AddedToken]:
    """Yields the tokens of added_tokens_decoder in the order of their ids."""
    stated = settings.section(_DECODER)
    for key in sorted(stated.values, key=lambda key: id_of(key, stated.where)):
        yield described(stated.section(key))


def _special(*files: Mapping[str, Any]) -> Iterator[AddedToken]:
    """Yields the special tokens that are named, `eos_token` and the like, and those in lists, in
    the order in which new ones get their ids."""
    named = [values.get(key) for key in _NAMED for values in files]
    for values in files:
        named += [
            each for key, each in values.items() if key.endswith("_token") and key not in _NAMED
        ]
    listed = [each for values in files for key in _LISTS for each in _listed(values.get(key))]
    for each in (*named, *listed):
        if isinstance(each, str) and each:
            yield added_token(each, SPECIAL_TOKENS, special=True)
        elif isinstance(each, dict) and isinstance(each.get("content"), str):
            yield described(Fields({**each, "special": True}, SPECIAL_TOKENS))


def _listed(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def json_of(path: Path) -> dict[str, Any]:
    """The settings in a file; none if there is no such file."""
    try:
        values = read_json(path, MAX_JSON_BYTES)
    except FileNotFoundError:
        return {}
    if not isinstance(values, dict):
        raise UnsupportedModel(f"{path} is not a JSON object")
    return values


def tokens_by_name(settings: Fields, further: Mapping[str, Any]) -> dict[str, str]:
    """bos_token and the like: texts, or objects with the text as `content`."""
    found = {}
    for name, value in {**further, **settings.values}.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str) and text:
            found[name] = text
    return found


def id_of(value: object, where: str) -> int:
    text = str(value)
    if not text.isdecimal() or len(text) > 8 or int(text) > HIGHEST_ID:
        raise UnsupportedModel(f"{where} has the id {text[:40]!r}; 0 to {HIGHEST_ID} are possible")
    return int(text)


def added_token(text: str, where: str, **flags: bool) -> AddedToken:
    """Raises UnsupportedModel for a text that UTF-8 has no bytes for."""
    try:
        return AddedToken(text, **flags)
    except UnicodeEncodeError:
        raise UnsupportedModel(
            f"{where} has the token {text[:40]!a}, which is half of a character"
        ) from None


def described(token: Fields) -> AddedToken:
    special = token.flag("special", False)
    return added_token(
        token.text("content"),
        token.where,
        special=special,
        normalized=token.flag("normalized", not special),
        lstrip=token.flag("lstrip", False),
        rstrip=token.flag("rstrip", False),
        single_word=token.flag("single_word", False),
    )
