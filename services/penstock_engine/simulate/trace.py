"""Traces: when requests arrive, and how long they are. JSON lines, read one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.errors import InvalidRequest

MAX_TOKENS = 1_048_576

Count = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]


class TraceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line.

    at: seconds from the start, not before the line above.  prompt_tokens: how many, or their ids.
    output_tokens: exactly so many are generated.  tenant, priority: as a request would state them.
    prefix_group: requests of the same group begin with the same `prefix_tokens` tokens.
    deadline_ms: after its arrival; the engine ends it then.
    adapter: any name; requests of the same one have the same adapter.
    session: any name; of the same one, each request is a turn that begins with the turn before and
    its answer. It comes `pause` seconds after that has ended, and not before `at`.
    resume_within: seconds after its own end in which the next turn is expected.
    """

    at: Annotated[float, Meta(ge=0)]
    prompt_tokens: Count | Annotated[list[int], Meta(min_length=1, max_length=MAX_TOKENS)]
    output_tokens: Count
    tenant: Annotated[str, Meta(max_length=256)] = ""
    priority: int = 0
    prefix_group: Annotated[int, Meta(ge=0)] | None = None
    prefix_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    deadline_ms: Annotated[int, Meta(ge=1)] | None = None
    adapter: Annotated[str, Meta(max_length=256)] = ""
    session: Annotated[str, Meta(max_length=256)] = ""
    pause: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    resume_within: Annotated[float, Meta(ge=0, le=86_400)] | None = None

    @property
    def num_prompt(self) -> int:
        prompt = self.prompt_tokens
        return prompt if isinstance(prompt, int) else len(prompt)


def read_trace(path: str) -> Iterator[TraceRequest]:
    """The file's requests. Raises InvalidRequest, which names the line."""
    decoder = msgspec.json.Decoder(TraceRequest)
    latest = 0.0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    request = decoder.decode(line)
                except msgspec.DecodeError as error:
                    raise InvalidRequest(f"{path}, line {number}: {error}") from None
                if not math.isfinite(request.at) or request.at < latest:
                    order = (
                        f"it arrives at {request.at:g} s, before the previous one at {latest:g} s"
                    )
                    raise InvalidRequest(f"{path}, line {number}: {order}")
                latest = request.at
                yield request
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from None


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> int:
    """Writes the lines; returns how many."""
    encoder = msgspec.json.Encoder()
    count = 0
    with open(path, "wb") as file:
        for request in requests:
            file.write(encoder.encode(request) + b"\n")
            count += 1
    return count
