"""Settings of a server with several models."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class ModelsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several models."""

    models: Annotated[
        str | None,
        Meta(
            description="YAML or JSON file that lists models, each with an engine core of its own"
            " (docs/guides/several-models.md); default: the one that --model names."
        ),
    ] = None
    models_memory_gib: Annotated[
        Annotated[float, Meta(gt=0, le=1_048_576)] | None,
        Meta(
            description="GiB that all loaded models may take together, by what each counts for in"
            " the list; default: no limit: no on-demand model is unloaded to make room for"
            " another."
        ),
    ] = None
    model_idle_minutes: Annotated[
        float,
        Meta(
            ge=0,
            le=525_600,
            description="Minutes without a request after which an on-demand model is unloaded; 0:"
            " never for this reason.",
        ),
    ] = 0.0
    model_turn_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Seconds for which a model with work keeps its memory while another model"
            " waits for it.",
        ),
    ] = 10.0
    model_load_timeout: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds that an on-demand model may take to become ready, and that a"
            " request without a deadline waits for it.",
        ),
    ] = 600.0
