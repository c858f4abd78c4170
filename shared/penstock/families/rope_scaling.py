"""How config.json says that rotary frequencies are stretched.

Source of the keys: transformers' modeling_rope_utils.
"""

from __future__ import annotations

import math

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.rope_spec import RopeScaling

SERVED = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def read_scaling(settings: Fields, fields: Fields, dims: int) -> RopeScaling | None:
    """settings: the section about rotary positions; fields: the whole config.json. dims: numbers
    of a head that rotate. Raises UnsupportedModel."""
    kind = settings.text("rope_type", settings.text("type", "default"))
    match kind:
        case "default":
            return None
        case "dynamic":
            # It begins where a sequence goes beyond max_position_embeddings, and none that is
            # served does: a base that follows a sequence's length would make what is cached wrong.
            settings.number("factor")
            return None
        case "linear":
            return _checked(RopeScaling(kind="linear", factor=settings.number("factor")), settings)
        case "llama3":
            return _llama3(settings, fields)
        case "yarn":
            return _yarn(settings, fields)
        case "longrope" | "su":
            return _longrope(settings, fields, dims)
    raise UnsupportedModel(
        f"{fields.where}: RoPE scaling {kind!r} is not served; {', '.join(SERVED)} are"
    )


def _original(settings: Fields, fields: Fields) -> int:
    """Tokens of the context that the model was first trained with."""
    key = "original_max_position_embeddings"
    return settings.integer(key, fields.integer(key, fields.integer("max_position_embeddings")))


def _checked(scaling: RopeScaling, settings: Fields) -> RopeScaling:
    if scaling.factor <= 0 or scaling.original_max_position < 1:
        raise UnsupportedModel(f"{settings.where}: factor and original length must be positive")
    return scaling


def _llama3(settings: Fields, fields: Fields) -> RopeScaling:
    scaling = RopeScaling(
        kind="llama3",
        factor=settings.number("factor"),
        low_freq_factor=settings.number("low_freq_factor"),
        high_freq_factor=settings.number("high_freq_factor"),
        original_max_position=_original(settings, fields),
    )
    if not 0 < scaling.low_freq_factor <= scaling.high_freq_factor:
        raise UnsupportedModel(
            f"{settings.where}: low_freq_factor {scaling.low_freq_factor:g} and high_freq_factor "
            f"{scaling.high_freq_factor:g} must be positive and ascending"
        )
    return _checked(scaling, settings)


def _yarn(settings: Fields, fields: Fields) -> RopeScaling:
    original = _original(settings, fields)
    factor = settings.number("factor", fields.integer("max_position_embeddings") / max(original, 1))
    scaling = RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=settings.number("beta_fast", 32.0),
        beta_slow=settings.number("beta_slow", 1.0),
        truncate=settings.flag("truncate", True),
        attention_factor=_yarn_attention(settings, factor),
    )
    if not 0 < scaling.beta_slow <= scaling.beta_fast:
        raise UnsupportedModel(
            f"{settings.where}: beta_slow {scaling.beta_slow:g} and beta_fast "
            f"{scaling.beta_fast:g} must be positive, the second not below the first"
        )
    return _checked(scaling, settings)


def _yarn_attention(settings: Fields, factor: float) -> float:
    def grown(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    stated = settings.optional_number("attention_factor")
    if stated is not None:
        return stated
    part, whole = settings.number("mscale", 0.0), settings.number("mscale_all_dim", 0.0)
    return grown(part) / grown(whole) if part and whole else grown(1.0)


def _longrope(settings: Fields, fields: Fields, dims: int) -> RopeScaling:
    original = _original(settings, fields)
    factor = settings.number("factor", fields.integer("max_position_embeddings") / max(original, 1))
    grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    return _checked(
        RopeScaling(
            kind="longrope",
            factor=factor,
            original_max_position=original,
            attention_factor=settings.number("attention_factor", grown),
            short_factors=_factors(settings, "short_factor", dims),
            long_factors=_factors(settings, "long_factor", dims),
        ),
        settings,
    )


def _factors(settings: Fields, key: str, dims: int) -> tuple[float, ...]:
    settings.ignore(key)  # asked for here
    values = settings.values.get(key)
    if not isinstance(values, list) or len(values) != dims // 2:
        raise settings.wrong(key, f"a list of {dims // 2} numbers")
    found = tuple(Fields({key: value}, settings.where).number(key) for value in values)
    if min(found) <= 0:
        raise settings.wrong(key, "a list of positive numbers")
    return found
