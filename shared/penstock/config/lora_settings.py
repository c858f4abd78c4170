"""Settings: adapters."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class LoraSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adapters (LoRA)."""

    enable_lora: Annotated[
        bool, Meta(description="Serve adapters: a request may name one as its model.")
    ] = False
    lora_modules: Annotated[
        Annotated[str, Meta(max_length=65_536)] | None,
        Meta(
            description="Adapters that are there from the start: `NAME=PATH`, or JSON:"
            ' `{"name": …, "path": …, "base_model_name": …}`; several as words or lines. PATH: a'
            " folder in PEFT's format, a .gguf file, or the name of either on the hub.",
            extra={"separator": "\n"},
        ),
    ] = None
    max_loras: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="Adapters that steps may use at a time; requests with others wait.",
        ),
    ] = 4
    max_lora_rank: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Highest rank of an adapter. There is memory for max_loras of that rank.",
        ),
    ] = 16
    lora_whole_matrices: Annotated[
        bool,
        Meta(
            description="Adapters may bring an embedding and an output head of their own (PEFT's"
            " modules_to_save). There is memory for those of max_loras, beside that of their"
            " factors."
        ),
    ] = False
    lora_experts: Annotated[
        bool,
        Meta(
            description="Adapters may change a mixture of experts: its experts, its router, and the"
            " expert that every token has. There is memory for that of max_loras, which is much:"
            " an adapter of all experts has factors for each."
        ),
    ] = False
    max_cpu_loras: Annotated[
        Annotated[int, Meta(ge=1, le=65_536)] | None,
        Meta(
            description="No effect: adapters not in use are read from their files again, which"
            " the system's page cache keeps. Not less than max_loras."
        ),
    ] = None
    lora_allowed_folder: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            description="Folder below which /v1/load_lora_adapter may read adapters; default: none,"
            " so that adapters are neither loaded nor unloaded while the server runs."
        ),
    ] = None
