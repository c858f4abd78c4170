"""Settings: media in prompts."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.config.tree import ADVANCED


class MediaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Media in prompts: sources and limits."""

    limit_mm_per_prompt: Annotated[
        str,
        Meta(
            description='Items of each kind that a prompt may hold, as JSON: `{"image": 4, "audio":'
            " 1}`; 0: none."
        ),
    ] = '{"image": 16, "audio": 16, "video": 16}'
    allowed_media_domains: Annotated[
        str,
        Meta(
            description="Domains from which media may be fetched: a JSON list or names with "
            "commas; default: none."
        ),
    ] = ""
    allowed_local_media_path: Annotated[
        str,
        Meta(
            description="Folder whose files requests may name by `file://`; default: none.",
        ),
    ] = ""
    mm_processor_kwargs: Annotated[
        str,
        Meta(
            description="Settings of the model's media processors to override, as JSON:"
            ' `{"max_pixels": 401408}`; default: none.'
        ),
    ] = ""
    media_io_kwargs: Annotated[
        str,
        Meta(
            description='Frames shown of a video file, as JSON: `{"video": {"num_frames": '
            '32}}`; fps: frames per second. `{"image": {"rgba_background_color": '
            "[0, 0, 0]}}`: background of transparent pictures, in place of white; "
            "default: as the model's processor says, or 32."
        ),
    ] = ""
    mm_processor_cache_gb: Annotated[
        float,
        Meta(ge=0, le=1024, description="GiB of prepared media that a front end keeps."),
    ] = 0.25
    media_processes: Annotated[
        int, Meta(ge=1, le=64, description="Processes that prepare media, for each front end.")
    ] = 2
    media_process_mib: Annotated[
        int,
        Meta(
            ge=256,
            le=65_536,
            description="MiB of address space that each of these processes may take.",
        ),
    ] = 1024
    media_process_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="Seconds of processor time that these processes may take for an item.",
        ),
    ] = 10.0
    max_media_bytes: Annotated[
        int, Meta(ge=1, le=1_073_741_824, description="Bytes of an item's file; more is a 413.")
    ] = 20_971_520
    max_media_request_bytes: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1,
            le=1_073_741_824,
            description="Bytes of all files of a request together; more is a 413.",
        ),
    ] = 67_108_864
    max_media_pixels: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1,
            le=268_435_456,
            description="Pixels of a picture, or of a video's frame; more is a 400.",
        ),
    ] = 67_108_864
    max_media_seconds: Annotated[
        float,
        Meta(
            extra=ADVANCED,
            gt=0,
            le=86_400,
            description="Seconds of a sound or a video; more is a 400.",
        ),
    ] = 600.0
    max_video_frames: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1,
            le=4096,
            description="Frames shown of a video; of a file with more, these; frames sent as "
            "pictures: a 400.",
        ),
    ] = 256
    max_video_pixels: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1,
            le=268_435_456,
            description="Pixels of all shown frames of a video, after resizing; more is a 400.",
        ),
    ] = 67_108_864
    max_document_pages: Annotated[
        int,
        Meta(extra=ADVANCED, ge=1, le=100_000, description="Pages of a PDF; more is a 400."),
    ] = 1000
    max_media_in_flight_mib: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1,
            le=1_048_576,
            description="MiB of media of all requests that a front end has open; more is refused "
            "with 429.",
        ),
    ] = 1024
    max_media_tenant_mib: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1,
            le=1_048_576,
            description="MiB of media of one tenant's open requests; more is refused with 429.",
        ),
    ] = 512
    media_fetch_seconds: Annotated[
        float, Meta(gt=0, le=600, description="Seconds that fetching an item may take.")
    ] = 5.0
