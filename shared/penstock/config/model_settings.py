"""Settings: which model, and how it is computed."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["none", "int8", "int4", "fp8"]
LoadFormat = Literal["auto", "dummy"]
Runner = Literal["auto", "generate", "pooling"]
Convert = Literal["auto", "embed", "classify"]
ModelImpl = Literal["auto", "penstock", "transformers"]


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model, and how it is computed."""

    model: Annotated[
        str, Meta(description="Alias, hub id, folder in the hub's format, or .gguf file.")
    ] = "smollm2-135m"
    served_model_name: Annotated[
        str | None,
        Meta(
            description="Names that requests may use, with commas or blanks; replies show the"
            " first. Default: the model's own.",
            extra={"separator": ","},
        ),
    ] = None
    dtype: Annotated[
        Dtype,
        Meta(
            description="Type of weights, activations and KV cache; auto: the checkpoint's"
            " (bfloat16 for a GGUF file in F16 on CUDA)."
        ),
    ] = "auto"
    quantization: Annotated[
        Quantization,
        Meta(
            description="What a float checkpoint's matrices become. int8 on the cpu backend: groups"
            " of 32 that meet int8 activations, with dtype auto. On CUDA, int8 and int4: weights"
            " only, in groups; fp8: weights and activations, e4m3."
        ),
    ] = "none"
    load_format: Annotated[
        LoadFormat,
        Meta(
            description="auto: the checkpoint's weights; dummy: random ones of its shapes, for"
            " measurements."
        ),
    ] = "auto"
    runner: Annotated[
        Runner,
        Meta(
            description="What the model is for: generate gives text, pooling gives embeddings or"
            " classes; auto: as its files say."
        ),
    ] = "auto"
    convert: Annotated[
        Convert,
        Meta(
            description="What a pooling model gives: embed leaves a classification head aside,"
            " classify needs one; auto: as its files say."
        ),
    ] = "auto"
    model_impl: Annotated[
        ModelImpl,
        Meta(
            description="Whose code describes the layers: penstock: one of its families;"
            " transformers: that library's, on a CPU and slower; auto: a family where there is one."
        ),
    ] = "auto"
    language_model_only: Annotated[
        bool,
        Meta(
            description="Leave out what a model sees with: it takes text only, saves the memory of"
            " its tower, and may run on a faster backend."
        ),
    ] = False
    mmproj: Annotated[
        str | None,
        Meta(
            description="Beside a .gguf file: path of the one with what the model sees or hears"
            " with, as llama.cpp's converter makes it."
        ),
    ] = None
    max_model_len: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Longest prompt plus output, tokens, of an encoder-decoder model the"
            " decoder's; default: the model's own."
        ),
    ] = None
    cache_dir: Annotated[
        str | None, Meta(description="Folder for prepared models; default: XDG cache.")
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Seed of requests that bring none; default: drawn per request."),
    ] = None
    chat_template: Annotated[
        Annotated[str, Meta(max_length=1_048_576)] | None,
        Meta(description="File with a Jinja chat template, or its text; default: the model's own."),
    ] = None
    generation_config: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)],
        Meta(
            description="Where a request that leaves out temperature, top_p, top_k, min_p,"
            " repetition_penalty or max_tokens gets it from: auto: the model's own files or card;"
            " vllm: nowhere, so it gets the API's defaults; or a folder with a"
            " generation_config.json."
        ),
    ] = "auto"
    override_generation_config: Annotated[
        Annotated[str, Meta(max_length=65_536)] | None,
        Meta(
            description="JSON object with some of these values, which come before the others:"
            ' `{"temperature": 0.5}`; default: none.'
        ),
    ] = None

    @property
    def served_names(self) -> tuple[str, ...]:
        """What served_model_name lists; empty: the model's own name is used."""
        return tuple((self.served_model_name or "").replace(",", " ").split())
