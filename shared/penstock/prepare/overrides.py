"""Settings of a model's own config that the operator replaces: `--hf-overrides`, `--rope-scaling`.

They are applied where the files are read, so all that follows from them does: the positions that
are allowed, the digest of the model, and so the names of what is cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.config.settings import ModelSettings
from penstock.errors import StartupError, UnsupportedModel
from penstock.formats.fields import Fields

SCALING, PARAMETERS, POSITIONS = "rope_scaling", "rope_parameters", "max_position_embeddings"
_OF_SCALING = {
    "rope_type": "rope.scaling.type",
    "type": "rope.scaling.type",
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.yarn_attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "rope_theta": "rope.freq_base",
}
"""A GGUF file's keys, after its architecture's name, for those of rope_scaling."""
_OF_GGUF = {"rope_theta": "rope.freq_base", POSITIONS: "context_length"}


def overrides_of(settings: ModelSettings) -> str:
    """What both settings say, as JSON; empty where they say nothing. Raises StartupError."""
    found = _object("hf_overrides", settings.hf_overrides)
    scaling = _object(SCALING, settings.rope_scaling)
    if scaling:
        if found.get(SCALING, scaling) != scaling:
            raise StartupError("rope_scaling is given, and hf_overrides has another one")
        found = {**found, SCALING: scaling}
    return msgspec.json.encode(found, order="sorted").decode() if found else ""


def _object(name: str, text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise StartupError(
            f"{name} is {text[:80]}; a JSON object is needed, as "
            + (
                '{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}'
                if name == SCALING
                else '{"max_position_embeddings": 65536}'
            )
        ) from None


def overridden(stated: Fields, overrides: str) -> Fields:
    """config.json with what the operator says instead. In a part of it, such as text_config, only
    the keys that are named are replaced; a rope_scaling goes to where the file has its own."""
    if not overrides:
        return stated
    return stated.replaced(_merged(stated.values, _read(overrides)))


def _merged(own: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    text = own.get("text_config")
    for name, value in given.items():
        inside = own.get(name)
        if name.endswith("_config") and isinstance(inside, dict) and isinstance(value, dict):
            found[name] = {**inside, **_merged(inside, value)}
        elif isinstance(text, dict) and name in (SCALING, PARAMETERS, POSITIONS, "rope_theta"):
            before = found.get("text_config", text)
            found["text_config"] = {**before, **_merged(before, {name: value})}
        elif name == SCALING and isinstance(value, dict):
            found |= _scaled(own, value, states=POSITIONS in given)
        else:
            found[name] = value
    return found


def _scaled(own: Mapping[str, Any], scaling: dict[str, Any], *, states: bool) -> dict[str, Any]:
    """Returns the overrides with the positions that follow from yarn. states: the positions are
    given explicitly as well."""
    stated = own.get(PARAMETERS)
    kept: dict[str, Any] = {}
    if isinstance(stated, dict) and "rope_theta" in stated:
        kept = {"rope_theta": stated["rope_theta"]}
    found: dict[str, Any] = (
        {PARAMETERS: {**kept, **scaling}} if isinstance(stated, dict) else {SCALING: scaling}
    )
    kind = scaling.get("rope_type", scaling.get("type"))
    most, factor = own.get(POSITIONS), scaling.get("factor")
    if (
        kind == "linear"
        and not states
        and isinstance(most, int)
        and isinstance(factor, int | float)
    ):
        found[POSITIONS] = int(most * factor)
    return found


def overridden_metadata(metadata: Mapping[str, Any], overrides: str, where: str) -> dict[str, Any]:
    """A GGUF file's metadata with what the operator says instead. Raises UnsupportedModel for what
    it has no key for."""
    found = dict(metadata)
    if not overrides:
        return found
    begin = f"{metadata.get('general.architecture')}."
    given = _read(overrides)
    for name, value in given.items():
        scaling = name in (SCALING, PARAMETERS) and isinstance(value, dict)
        keys = _OF_SCALING if scaling else _OF_GGUF
        for key, each in value.items() if scaling else ((name, value),):
            if key not in keys:
                known = ", ".join((SCALING, *_OF_GGUF))
                raise UnsupportedModel(
                    f"{where}: {key[:80]} can't be replaced in a GGUF file; {known} can, and in "
                    f"{SCALING} {', '.join(_OF_SCALING)}"
                )
            found[begin + keys[key]] = each
        if scaling and POSITIONS not in given:
            _stretch(found, begin, value)
    return found


def _stretch(found: dict[str, Any], begin: str, scaling: dict[str, Any]) -> None:
    key, original = f"{begin}context_length", f"{begin}rope.scaling.original_context_length"
    most, factor = found.get(key), scaling.get("factor")
    if found.get(f"{begin}rope.scaling.type") == "yarn":
        found.setdefault(original, most)
    elif isinstance(most, int) and isinstance(factor, int | float):
        found[key] = int(most * factor)


def _read(overrides: str) -> dict[str, Any]:
    return msgspec.json.decode(overrides.encode(), type=dict[str, Any])
