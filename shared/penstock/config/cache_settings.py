"""Settings: what is kept of what was computed."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

KVRole = Literal["both", "prefill", "decode"]

CacheDtype = Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"]


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The paged KV cache."""

    num_kv_blocks: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="KV blocks in the pool; default: as many as memory allows."),
    ] = None
    kv_block_size: Annotated[int, Meta(ge=1, le=1024, description="Tokens per KV block.")] = 16
    kv_cache_dtype: Annotated[
        CacheDtype,
        Meta(
            description="Type of stored keys and values; auto: the same as dtype; int8 (not on"
            " CUDA): one byte each, with a scale per token and head; fp8 (CUDA only): e4m3."
        ),
    ] = "auto"
    calculate_kv_scales: Annotated[
        bool,
        Meta(
            description="With kv_cache_dtype fp8: take the scales that the checkpoint lacks from "
            "a trial step."
        ),
    ] = False
    enable_prefix_caching: Annotated[
        bool,
        Meta(description="Reuse KV blocks of earlier requests that began with the same tokens."),
    ] = True
    state_checkpoint_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=1_048_576)] | None,
        Meta(
            description="Tokens between two checkpoints of recurrent layers' states, a multiple "
            "of kv_block_size; default: as many as take the room of a checkpoint, 2048 at most."
        ),
    ] = None
    host_kv_gib: Annotated[
        float,
        Meta(
            ge=0,
            description="GiB of host memory for KV blocks that are evicted from the pool; 0: none.",
        ),
    ] = 0.0
    disk_kv_dir: Annotated[
        str | None,
        Meta(
            description="Folder for KV blocks that outlive a restart; default: none. Engine cores "
            "of one host may share it."
        ),
    ] = None
    disk_kv_gib: Annotated[
        float,
        Meta(
            gt=0,
            le=1_048_576,
            description="Maximum size of disk_kv_dir in GiB, for all models together.",
        ),
    ] = 16.0
    disk_kv_write_mib: Annotated[
        float,
        Meta(
            gt=0,
            le=1_048_576,
            description="MiB per second that each engine core writes to disk_kv_dir or kv_store; "
            "blocks beyond that aren't kept.",
        ),
    ] = 256.0
    disk_kv_key_file: Annotated[
        str | None,
        Meta(
            description="File with a key of 64 hexadecimal digits that encrypts these blocks "
            "(needs the extra `encryption`); default: no encryption."
        ),
    ] = None
    kv_store: Annotated[
        str | None,
        Meta(
            description="Plug-in that stores KV blocks elsewhere, with or without disk_kv_dir;"
            " default: none. For the same models as disk_kv_dir."
        ),
    ] = None
    kv_store_address: Annotated[str, Meta(description="Address for kv_store.")] = ""
    kv_endpoint: Annotated[
        str | None,
        Meta(
            description="Where this engine core's worker offers its KV blocks to others' "
            "(tcp://HOST:PORT or ipc://PATH); default: nowhere. Rank r uses PORT + r, "
            "or PATH.r."
        ),
    ] = None
    kv_peers: Annotated[
        str,
        Meta(
            description="The kv_endpoint of up to 16 other engine cores of the model, with "
            "commas, from which blocks are fetched."
        ),
    ] = ""
    kv_transfer_gib: Annotated[
        float,
        Meta(
            gt=0,
            le=1_048_576,
            description="GiB of host memory for blocks offered at kv_endpoint.",
        ),
    ] = 1.0
    kv_handover_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="With kv_endpoint: seconds at shutdown before open requests move to "
            "another engine core, which fetches their KV.",
        ),
    ] = 1.0
    kv_role: Annotated[
        KVRole,
        Meta(
            description="prefill: prompts of at least kv_prefill_tokens; decode: everything else; "
            "both: everything."
        ),
    ] = "both"
    kv_prefill_tokens: Annotated[
        int,
        Meta(
            ge=1,
            le=1_048_576,
            description="With kv_role prefill: shorter prompts are computed where the answer is "
            "generated.",
        ),
    ] = 512
    kv_fetch_ahead: Annotated[
        bool,
        Meta(
            description="With kv_peers: fetch the KV of a prompt while one of role prefill still "
            "computes it. For slow networks."
        ),
    ] = False
    kv_retention_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Seconds for which a session's KV blocks are kept after its latest "
            "request, unless that says otherwise.",
        ),
    ] = 120.0
    max_kv_retention_seconds: Annotated[
        float,
        Meta(ge=0, le=86_400, description="The longest kv_retention_seconds of a request."),
    ] = 3600.0
    session_kv_share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Largest share of the KV pool that is kept for sessions.",
        ),
    ] = 0.5
    kv_memory_fraction: Annotated[
        float,
        Meta(
            gt=0, le=0.95, description="Share of free memory that the KV pool may take, on a CPU."
        ),
    ] = 0.4
    kv_memory_gib: Annotated[
        float,
        Meta(
            ge=0,
            le=1_048_576,
            description="GiB that the KV pool may take on a CPU, more only if one sequence of "
            "max_model_len needs it; 0: limited only by kv_memory_fraction.",
        ),
    ] = 4.0
    gpu_memory_utilization: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Share of a GPU's memory for weights, activations and the KV pool.",
        ),
    ] = 0.9
    enable_encoder_cache: Annotated[
        bool,
        Meta(
            description="Reuse encodings of pictures, sounds and videos from earlier requests with"
            " the same API key and cache_salt."
        ),
    ] = True
    encoder_cache_rows: Annotated[
        Annotated[int, Meta(ge=1, le=16_777_216)] | None,
        Meta(
            description="Embeddings of encoded media to keep; default: 16,384, or what fits into "
            "256 MiB. A request's largest item must fit."
        ),
    ] = None
    media_load_mib: Annotated[
        int,
        Meta(
            ge=1,
            le=1_048_576,
            description="MiB of prepared media that wait at the worker to be encoded; those of "
            "one request must fit.",
        ),
    ] = 512
