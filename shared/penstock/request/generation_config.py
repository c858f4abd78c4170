"""Sampling values for requests that leave them out: from generation_config.json, a model's card or
the settings. Names as transformers' GenerationConfig has them; which count is vLLM's choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from penstock.config.settings import ModelSettings
from penstock.errors import InvalidRequest, StartupError, UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.prepared_model import GenerationDefaults

FILE = "generation_config.json"
MAX_BYTES = 1 << 20

NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")
WHOLE = ("top_k", "max_new_tokens")
SAMPLING = (*NUMBERS, *WHOLE)
"""What of a generation config speaks for a silent request. Its EOS ids always hold."""


def stated_sampling(fields: Fields) -> dict[str, Any]:
    """What a generation config says about sampling, by field; None for what it leaves out.

    Raises UnsupportedModel for a value of the wrong type.
    """
    numbers = {name: fields.optional_number(name) for name in NUMBERS}
    return {**numbers, **{name: fields.optional_integer(name) for name in WHOLE}}


def filled(own: GenerationDefaults, others: GenerationDefaults) -> GenerationDefaults:
    """`own`, with the sampling values of `others` where it states none."""
    missing = [name for name in SAMPLING if getattr(own, name) is None]
    return msgspec.structs.replace(own, **{name: getattr(others, name) for name in missing})


def sampling_defaults(generation: GenerationDefaults) -> dict[str, Any]:
    """What is stated, under the names of SamplingParams."""
    stated = {name: getattr(generation, name) for name in SAMPLING}
    stated["max_tokens"] = stated.pop("max_new_tokens")
    return {name: value for name, value in stated.items() if value is not None}


def generation_defaults(own: GenerationDefaults, settings: ModelSettings) -> GenerationDefaults:
    """What holds for silent requests: the model's own values, or those that the settings name.

    Raises StartupError for a file or an object that can't be used, and values out of range.
    """
    chosen, source = own, f"the model's {FILE}"
    if settings.generation_config != "auto":
        source = f"--generation-config {settings.generation_config}"
        chosen = _with_sampling(own, _named(settings.generation_config))
    override = settings.override_generation_config
    if override is None:
        if settings.generation_config != "auto":
            _check(chosen, source)
        return chosen
    given = _overriding(override)
    chosen = msgspec.structs.replace(chosen, **given)
    _check(chosen, f"{source} with --override-generation-config")
    return chosen


def _with_sampling(own: GenerationDefaults, values: dict[str, Any]) -> GenerationDefaults:
    return msgspec.structs.replace(own, **{name: values.get(name) for name in SAMPLING})


def _named(source: str) -> dict[str, Any]:
    if source == "vllm":
        return {}
    path = Path(source).expanduser()
    path = path / FILE if path.is_dir() else path
    flag = f"--generation-config {source}"
    try:
        if path.stat().st_size > MAX_BYTES:
            raise StartupError(f"{flag}: {path} is larger than {MAX_BYTES} bytes")
        return _read(path.read_text(encoding="utf-8"), f"{flag}: {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(
            f"{flag}: {path} can't be read ({error}); allowed are auto, vllm, or a folder with a "
            f"{FILE}"
        ) from None


def _overriding(text: str) -> dict[str, Any]:
    flag = "--override-generation-config"
    values = _object(text, flag)
    unknown = sorted(values.keys() - set(SAMPLING))
    if unknown:
        raise StartupError(
            f"{flag}: {', '.join(unknown)} can't be set; allowed are {', '.join(SAMPLING)}"
        )
    stated = _typed(values, flag)
    return {name: stated[name] for name in values}


def _read(text: str, where: str) -> dict[str, Any]:
    return _typed(_object(text, where), where)


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StartupError(f"{where} is not readable JSON: {error}") from None
    if not isinstance(values, dict):
        raise StartupError(f'{where} is no JSON object, like {{"temperature": 0.5}}')
    return values


def _typed(values: dict[str, Any], where: str) -> dict[str, Any]:
    try:
        return stated_sampling(Fields(values, where))
    except UnsupportedModel as error:
        raise StartupError(str(error)) from None


def _check(generation: GenerationDefaults, source: str) -> None:
    """Once at start, instead of with every request."""
    from penstock.request.sampling_params import SamplingParams

    try:
        SamplingParams(**sampling_defaults(generation))
    except InvalidRequest as error:
        raise StartupError(f"{source}: {error}") from None
