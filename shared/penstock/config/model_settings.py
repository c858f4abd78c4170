"""Settings: which model, how it is computed, and its adapters."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["none", "int8", "int4", "fp8"]
MatmulPrecision = Literal["medium", "high"]
LoadFormat = Literal["auto", "dummy"]
Runner = Literal["auto", "generate", "pooling"]
Convert = Literal["auto", "embed", "classify"]
ModelImpl = Literal["auto", "penstock", "transformers"]


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model, and how it is computed."""

    model: Annotated[
        str, Meta(description="Alias, hub id, folder in the hub's format, or .gguf file.")
    ] = "smollm2-135m"
    served_model_name: Annotated[
        str | None,
        Meta(
            description="Names of the model in requests, with commas or spaces; replies use the "
            "first. Default: the model's own.",
            extra={"separator": ","},
        ),
    ] = None
    dtype: Annotated[
        Dtype,
        Meta(
            description="Type of weights, activations and KV cache; auto: the checkpoint's type"
            " (bfloat16 for a GGUF file in F16 on CUDA)."
        ),
    ] = "auto"
    quantization: Annotated[
        Quantization,
        Meta(
            description="Format to which a float checkpoint's matrices are quantised. int8 on the"
            " cpu backend: groups of 32, computed with int8 activations; needs dtype auto. On"
            " CUDA, int8 and int4: weights only, in groups; fp8: weights and activations, e4m3."
        ),
    ] = "none"
    matmul_precision: Annotated[
        MatmulPrecision,
        Meta(
            description="Rounding of activations on the cpu backend, for weights that aren't "
            "float32. medium: to int8, or bfloat16 for bfloat16; high: twice as many "
            "bits, slower."
        ),
    ] = "medium"
    load_format: Annotated[
        LoadFormat,
        Meta(
            description="auto: the checkpoint's weights; dummy: random weights of the same shapes,"
            " for measurements."
        ),
    ] = "auto"
    runner: Annotated[
        Runner,
        Meta(
            description="generate returns text, pooling embeddings or classes; auto: as the "
            "model's files say."
        ),
    ] = "auto"
    convert: Annotated[
        Convert,
        Meta(
            description="Of a pooling model: embed ignores a classification head, classify needs "
            "one; auto: as its files say."
        ),
    ] = "auto"
    model_impl: Annotated[
        ModelImpl,
        Meta(
            description="penstock: one of its families; transformers: that library's code, on a "
            "CPU and slower; auto: a family if there is one, else transformers."
        ),
    ] = "auto"
    language_model_only: Annotated[
        bool,
        Meta(description="Leave out a model's vision and audio parts, which saves memory."),
    ] = False
    mmproj: Annotated[
        str | None,
        Meta(
            description="For a .gguf file: llama.cpp's file with the model's vision or audio part."
        ),
    ] = None
    hf_overrides: Annotated[
        str,
        Meta(
            description="Settings of the model's own config.json to replace, as JSON:"
            ' `{"max_position_embeddings": 65536}`; of a GGUF file, those of positions. Default:'
            " none."
        ),
    ] = ""
    rope_scaling: Annotated[
        str,
        Meta(
            description='Stretching of positions, as JSON: `{"rope_type": "yarn", "factor": '
            '4.0, "original_max_position_embeddings": 32768}`; default: as the '
            "model's files say."
        ),
    ] = ""
    max_model_len: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Longest prompt plus output, in tokens (for an encoder-decoder model: the"
            " decoder's tokens); default: the model's own."
        ),
    ] = None
    cache_dir: Annotated[
        str | None,
        Meta(
            description="Folder for prepared models; default: penstock in the XDG cache, or a "
            "temporary folder."
        ),
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Seed for requests without one; default: a new one for each request."),
    ] = None
    chat_template: Annotated[
        Annotated[str, Meta(max_length=1_048_576)] | None,
        Meta(
            description="File with a Jinja chat template, or the template's text; default: the"
            " model's own."
        ),
    ] = None
    generation_config: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)],
        Meta(
            description="Default temperature, top_p, top_k, min_p, repetition_penalty and "
            "max_tokens: auto: the model's own files or card; vllm: the API's "
            "defaults; or a folder with a generation_config.json."
        ),
    ] = "auto"
    override_generation_config: Annotated[
        Annotated[str, Meta(max_length=65_536)] | None,
        Meta(
            description="Some of these values, as JSON, which override the others: "
            '`{"temperature": 0.5}`; default: none.'
        ),
    ] = None

    @property
    def served_names(self) -> tuple[str, ...]:
        """What served_model_name lists; empty: the model's own name is used."""
        return tuple((self.served_model_name or "").replace(",", " ").split())


class LoraSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adapters (LoRA)."""

    enable_lora: Annotated[
        bool, Meta(description="Serve adapters: a request may name one as its model.")
    ] = False
    lora_modules: Annotated[
        Annotated[str, Meta(max_length=65_536)] | None,
        Meta(
            description='Adapters to load at the start: `NAME=PATH`, or JSON: `{"name": …, '
            '"path": …, "base_model_name": …}`; several as words or lines. PATH: '
            "a folder in PEFT's format, a .gguf file, or the name of either on the "
            "hub.",
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
            description="Adapters may bring an embedding and an output head of their own (PEFT's "
            "modules_to_save). Reserves memory for max_loras."
        ),
    ] = False
    lora_experts: Annotated[
        bool,
        Meta(
            description="Adapters may change a mixture of experts and its router. Reserves much "
            "memory for max_loras."
        ),
    ] = False
    max_cpu_loras: Annotated[
        Annotated[int, Meta(ge=1, le=65_536)] | None,
        Meta(description="No effect; not less than max_loras."),
    ] = None
    lora_allowed_folder: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            description="Folder below which /v1/load_lora_adapter may read adapters; default: "
            "none can be loaded."
        ),
    ] = None
