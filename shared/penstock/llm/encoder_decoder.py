"""Prompts of encoder-decoder models whose halves are given apart, as vLLM takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import InvalidRequest
from penstock.llm.sounds_given import MEDIA_FIELDS

HALVES = ("encoder_prompt", "decoder_prompt")
_SALT = "cache_salt"
_ENCODER_FIELDS = ("prompt", *MEDIA_FIELDS, _SALT)


def joined(prompt: Any) -> Any:
    """A prompt with halves as one with media; any other as it is. Raises InvalidRequest."""
    if not isinstance(prompt, Mapping) or not any(half in prompt for half in HALVES):
        return prompt
    unknown = sorted(map(str, prompt.keys() - set(HALVES)))
    if unknown or len(prompt) != len(HALVES):
        raise InvalidRequest(f"a prompt in two halves has {' and '.join(HALVES)}, and nothing else")
    encoder, decoder = (prompt[half] for half in HALVES)
    if not isinstance(encoder, Mapping) or encoder.get("prompt") or not _media(encoder):
        raise InvalidRequest(
            'encoder_prompt must be a dict with multi_modal_data, and "prompt" "" if any: only '
            "sounds are encoded here"
        )
    others = sorted(map(str, encoder.keys() - set(_ENCODER_FIELDS)))
    if others:
        raise InvalidRequest(
            f"encoder_prompt has no field {others[0][:80]!r}; there are "
            f"{', '.join(_ENCODER_FIELDS)}"
        )
    if isinstance(decoder, str):
        decoder = {"prompt": decoder}
    elif isinstance(decoder, (list, tuple)):
        decoder = {"prompt_token_ids": list(decoder)}
    if not isinstance(decoder, Mapping) or _media(decoder):
        raise InvalidRequest("decoder_prompt must be a text, token ids, or a dict of either")
    return {**decoder, **_media(encoder), **_salt(encoder, decoder)}


def _media(half: Mapping[str, Any]) -> dict[str, Any]:
    return {name: half[name] for name in MEDIA_FIELDS if half.get(name) is not None}


def _salt(encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> dict[str, Any]:
    """The whole prompt's, which either half may bring."""
    given = [half[_SALT] for half in (encoder, decoder) if half.get(_SALT) is not None]
    if len(given) == 2 and given[0] != given[1]:
        raise InvalidRequest(
            f"{' and '.join(HALVES)} have different cache_salts; a prompt has one",
            param=_SALT,
        )
    return {_SALT: given[0]} if given else {}
