"""Settings of what outlives a process: files, batches of requests, responses."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.config.tree import ADVANCED


class StorageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files, batches and responses that outlive a process."""

    data_dir: Annotated[
        str | None,
        Meta(
            description="Folder for files and batches (`/v1/files`, `/v1/batches`), which all "
            "gateways share; default: neither is served."
        ),
    ] = None
    database_url: Annotated[
        Annotated[str, Meta(pattern=r"^(sqlite:///.+|postgresql\+psycopg://.+)$")] | None,
        Meta(
            description="Database of files and batches: `sqlite:///FILE`, or "
            "`postgresql+psycopg://USER@HOST/NAME` (needs the extra `postgres`); "
            "default: a SQLite file in --data-dir."
        ),
    ] = None
    database_pool_size: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1,
            le=100,
            description="Connections to PostgreSQL that each gateway, gRPC's and the batches' "
            "process open at most.",
        ),
    ] = 4
    files_url: Annotated[
        Annotated[str, Meta(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w./-]*)?$")] | None,
        Meta(
            description="Store of files' contents: `s3://BUCKET/PREFIX`, with keys and region "
            "from the environment (needs the extra `s3`); default: --data-dir."
        ),
    ] = None
    s3_endpoint_url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://.+$")] | None,
        Meta(description="URL of an S3-compatible store; default: Amazon's."),
    ] = None
    max_file_bytes: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1024,
            description="Largest file that is accepted, bytes; more is a 413.",
        ),
    ] = 209_715_200
    max_stored_bytes: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1024,
            description="Bytes of files that a tenant may store; more is a 429.",
        ),
    ] = 10_737_418_240
    max_stored_files: Annotated[
        int, Meta(extra=ADVANCED, ge=1, le=1_000_000, description="Files that a tenant may store.")
    ] = 10_000
    max_uploads: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1,
            le=65_536,
            description="Concurrent uploads for each gateway; more are refused with 503.",
        ),
    ] = 64
    max_tenant_uploads: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1,
            le=65_536,
            description="Concurrent uploads of one tenant; more get a 429.",
        ),
    ] = 16
    max_batch_lines: Annotated[
        int, Meta(extra=ADVANCED, ge=1, le=1_000_000, description="Requests in one batch.")
    ] = 50_000
    max_open_batches: Annotated[
        int, Meta(extra=ADVANCED, ge=1, le=10_000, description="Unfinished batches of a tenant.")
    ] = 100
    batch_concurrency: Annotated[
        int, Meta(ge=1, le=4096, description="Batch requests that are open at once.")
    ] = 32
    stored_response_hours: Annotated[
        int,
        Meta(
            ge=0,
            le=87_600,
            description="Hours for which responses and conversations are kept after they were "
            "last continued; 0: not kept. Needs --data-dir.",
        ),
    ] = 0
    max_stored_responses: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1,
            le=10_000_000,
            description="Responses kept for a tenant; the oldest are deleted.",
        ),
    ] = 10_000
    max_stored_response_bytes: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1024,
            description="Bytes of responses kept for a tenant, with their requests.",
        ),
    ] = 1_073_741_824
    max_stored_conversations: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000_000,
            description="Conversations kept for a tenant, in --max-stored-response-bytes; the "
            "least recently used are deleted.",
        ),
    ] = 10_000
    max_conversation_items: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Items in one conversation; more are refused."),
    ] = 10_000
    max_background_responses: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1,
            le=1_000_000,
            description="Unfinished background responses of a tenant, and streams of stored ones; "
            "more get a 429.",
        ),
    ] = 100
    background_concurrency: Annotated[
        int,
        Meta(
            extra=ADVANCED, ge=1, le=4096, description="Background responses that are open at once."
        ),
    ] = 32
    batch_result_days: Annotated[
        int, Meta(ge=1, le=3650, description="Days that the results of a batch are kept.")
    ] = 30
