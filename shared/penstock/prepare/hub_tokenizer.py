"""What is to be known about a hub folder's tokenizer. A tokenizer.json is taken as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Backend

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.formats.small_file import read_small
from penstock.hub.selection import SLOW_TOKENIZERS
from penstock.prepare.added_tokens import add_stated_tokens, json_of, tokens_by_name
from penstock.prepare.inputs import SPECIAL_TOKENS, TOKENIZER
from penstock.prepare.slow_tokenizer import convert_tokenizer
from penstock.prepare.tokenizer_bounds import check_tokenizer
from penstock.process import logs
from penstock.text.tokenizer import load_backend

log = logs.get(__name__)

MAX_TOKENIZER_BYTES = 256 << 20

PAD_LEFT = ("Gemma", "Siglip2")
"""How the names of those tokenizers begin that fill up texts on the left."""


class HubTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """adds_bos: whether tokenizer.json's own post-processor puts BOS in front.
    bos_id, eos_id, pad_id, mask_id: of the tokens that tokenizer_config.json names; None if it
    names none.
    pads_left: whether what fills up a text stands before it."""

    json: bytes
    highest_id: int
    bos_id: int | None
    eos_id: int | None
    adds_bos: bool
    pad_id: int | None = None
    pads_left: bool = False
    mask_id: int | None = None


def read_tokenizer(content: bytes, settings: Fields) -> HubTokenizer:
    """Raises UnsupportedModel if the file can't be read."""
    return _found(_sound(content, settings), content, settings)


def _found(tokenizer: Backend, content: bytes, settings: Fields) -> HubTokenizer:
    ids = tokenizer.get_vocab(with_added_tokens=True)
    if not ids:
        raise UnsupportedModel(f"tokenizer.json beside {settings.where} has an empty vocabulary")
    bos_id = _named_token(settings, "bos_token", ids)
    return HubTokenizer(
        json=content,
        highest_id=max(ids.values()),
        bos_id=bos_id,
        eos_id=_named_token(settings, "eos_token", ids),
        adds_bos=bos_id is not None and tokenizer.encode("").ids[:1] == [bos_id],
        pad_id=_named_token(settings, "pad_token", ids),
        pads_left=_pads_left(settings),
        mask_id=token_named(settings, "mask_token", ids),
    )


def _sound(content: bytes, settings: Fields) -> Backend:
    """Loads a tokenizer.json that is within bounds. Raises UnsupportedModel."""
    try:
        check_tokenizer(content, "tokenizer.json")
        return load_backend(content)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"beside {settings.where}: {error}") from error


def _pads_left(settings: Fields) -> bool:
    """Whether prompts are padded on the left: as the file says, or else as the tokenizer's class
    does in transformers."""
    kind = settings.values.get("tokenizer_class")
    usual = "left" if str(kind or "").startswith(PAD_LEFT) else "right"
    return settings.values.get("padding_side", usual) == "left"


def token_named(settings: Fields, key: str, ids: dict[str, int]) -> int | None:
    """The id of a token that tokenizer_config.json names; None also for one that the vocabulary
    lacks, as few models need it."""
    value = settings.values.get(key)
    text = value.get("content") if isinstance(value, dict) else value
    return ids.get(text) if isinstance(text, str) else None


def _named_token(settings: Fields, key: str, ids: dict[str, int]) -> int | None:
    """The id of a token that is given as a text, or as an object with the text as `content`."""
    value = settings.values.get(key)
    if isinstance(value, dict):
        value = value.get("content")
    if value is None:
        return None
    if not isinstance(value, str) or value not in ids:
        raise settings.wrong(key, "a token of tokenizer.json")
    return ids[value]


def tokenizer_of_folder(path: Path, settings: Fields, embeddings: int) -> HubTokenizer:
    """Returns the tokenizer of a folder; what the folder has instead of a tokenizer.json is
    converted. settings: of tokenizer_config.json. embeddings: how many the model has; added tokens
    with larger ids are left out. Raises UnsupportedModel."""
    file = path / TOKENIZER
    if file.is_file():
        content = read_small(file, MAX_TOKENIZER_BYTES)
        backend = _sound(content, settings)
        if add_stated_tokens(backend, path, settings):
            content = backend.to_str().encode()
            backend = _sound(content, settings)
        if "added_tokens_decoder" not in settings:
            older = tokens_by_name(Fields({}, ""), json_of(path / SPECIAL_TOKENS))
            settings = settings.with_absent(older)
    else:
        converted = convert_tokenizer(path, settings)
        if converted is None:
            raise UnsupportedModel(
                f"{path} holds no {TOKENIZER}, nor a file that it can be made from: "
                f"{', '.join(SLOW_TOKENIZERS)}"
            )
        content, settings = converted
        backend = _sound(content, settings)
    found = _found(backend, content, settings)
    if found.highest_id < embeddings:
        return found
    return _with_embeddings(content, settings, embeddings) or found


def _with_embeddings(content: bytes, settings: Fields, embeddings: int) -> HubTokenizer | None:
    """Returns the tokenizer without the added tokens that the model has no embedding for: the image
    token in a text-only model of a family that sees (Gemma 3 1B), or one that only training needed.
    None if ordinary tokens have none either, or a text begins or ends with such a token."""
    described = msgspec.json.decode(content)
    added = described.get("added_tokens") or []
    missing = {token["content"] for token in added if token["id"] >= embeddings}
    named = {
        key: value.get("content") if isinstance(value, dict) else value
        for key, value in settings.values.items()
        if key in ("bos_token", "eos_token")
    }
    if not missing or missing & set(named.values()):
        return None
    described["added_tokens"] = [token for token in added if token["content"] not in missing]
    _leave_out(described["model"], missing)
    shorter = msgspec.json.encode(described)
    pad = settings.values.get("pad_token")
    if (pad.get("content") if isinstance(pad, dict) else pad) in missing:
        settings = settings.replaced({"pad_token": None})
    tokenizer = _sound(shorter, settings)
    found = _found(tokenizer, shorter, settings)
    if max(found.highest_id, *tokenizer.encode("").ids, 0) >= embeddings:
        return None
    log.info("tokens without an embedding are left out", tokens=", ".join(sorted(missing)))
    return found


def _leave_out(model: dict[str, Any], texts: set[str]) -> None:
    """Takes tokens out of a vocabulary of tokenizer.json, with the merges that they are part of."""
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = {text: at for text, at in model["vocab"].items() if text not in texts}
    prefix = model.get("continuing_subword_prefix") or ""
    kept = []
    for merge in model.get("merges") or ():
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        if not {left, right, left + right.removeprefix(prefix)} & texts:
            kept.append(merge)
    if "merges" in model:
        model["merges"] = kept
