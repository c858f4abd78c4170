"""Traces: when requests arrive, and how long they are. JSON lines, read one at a time."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta

from penstock.errors import InvalidRequest

MAX_TOKENS = 1_048_576
VOCAB = 32_768

MAX_LINE = 16 * 1024 * 1024
"""Bytes of a line: enough for the ids of the longest prompt."""

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
    unnamed: the session's name is not sent; only its tokens tell.
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
    unnamed: bool = False

    @property
    def num_prompt(self) -> int:
        prompt = self.prompt_tokens
        return prompt if isinstance(prompt, int) else len(prompt)


def read_trace(path: str) -> Iterator[TraceRequest]:
    """The file's requests, of its own format or a public one. Raises InvalidRequest, which names
    the line."""
    latest = 0.0
    try:
        with open(path, "rb") as file:
            for number, request in _numbered(file, path):
                if not math.isfinite(request.at) or request.at < latest:
                    order = (
                        f"it arrives at {request.at:g} s, before the previous one at {latest:g} s"
                    )
                    raise InvalidRequest(f"{path}, line {number}: {order}")
                latest = request.at
                yield request
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from None


def _numbered(file: BinaryIO, path: str) -> Iterator[tuple[int, TraceRequest]]:
    """Requests with the numbers of their lines."""
    read: Callable[[bytes], TraceRequest] | None = None
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise InvalidRequest(f"{path}, line {number}: longer than {MAX_LINE:,} bytes")
        if not line.strip():
            continue
        if read is None:
            public, heading = reader_of(line)
            read = public or msgspec.json.Decoder(TraceRequest).decode
            if heading:
                continue
        try:
            request = read(line)
        except (msgspec.DecodeError, InvalidRequest, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{path}, line {number}: {error}") from None
        yield number, request


# Traces as others publish them: Azure's CSV of LLM inference, and Mooncake's JSON lines.

AZURE_COLUMNS = "TIMESTAMP,ContextTokens,GeneratedTokens"

MOONCAKE_BLOCK = 512
"""Tokens that a hash of a Mooncake trace stands for."""

LineReader = Callable[[bytes], TraceRequest]
"""Reads one line. Raises InvalidRequest, or msgspec's DecodeError."""


def reader_of(line: bytes) -> tuple[LineReader | None, bool]:
    """Returns what reads a public trace that begins with this line, and whether the line is a
    heading; None for another format."""
    if line.strip().lstrip(b"\xef\xbb\xbf").decode("ascii", "replace") == AZURE_COLUMNS:
        return AzureRows(), True
    if line.lstrip()[:1] == b"{" and b'"timestamp"' in line:
        return mooncake_request, False
    return None, False


class AzureRows:
    """Rows of a time, prompt tokens and output tokens; times count from the first row."""

    def __init__(self) -> None:
        self._begun: datetime.datetime | None = None

    def __call__(self, line: bytes) -> TraceRequest:
        cells = line.decode("utf-8", "replace").strip().split(",")
        if len(cells) != 3:
            raise InvalidRequest(f"{len(cells)} cells; a row has {AZURE_COLUMNS}")
        try:
            at = datetime.datetime.fromisoformat(cells[0])
            prompt, output = int(cells[1]), int(cells[2])
            begun = self._begun = self._begun or at
            seconds = (at - begun).total_seconds()
        except (ValueError, TypeError):
            raise InvalidRequest(f"{line[:80]!r} is no row of {AZURE_COLUMNS}") from None
        return _checked(seconds, prompt, output)


class MooncakeLine(msgspec.Struct, frozen=True):
    """timestamp: milliseconds.  hash_ids: one for each 512 tokens of the prompt; prompts that begin
    with the same ones begin with the same tokens."""

    timestamp: Annotated[float, Meta(ge=0)]
    input_length: Count
    output_length: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
    hash_ids: Annotated[
        list[Annotated[int, Meta(ge=0, le=2**53)]], Meta(max_length=MAX_TOKENS // MOONCAKE_BLOCK)
    ] = []


_MOONCAKE = msgspec.json.Decoder(MooncakeLine)


def mooncake_request(line: bytes) -> TraceRequest:
    read = _MOONCAKE.decode(line)
    given = read.input_length
    if not read.hash_ids:
        return _checked(read.timestamp / 1000, given, read.output_length)
    blocks = -(-given // MOONCAKE_BLOCK)
    if len(read.hash_ids) != blocks:
        raise InvalidRequest(
            f"{len(read.hash_ids)} hash_ids for {given:,} tokens; one for each {MOONCAKE_BLOCK} "
            f"tokens would be {blocks}"
        )
    tokens: list[int] = []
    for number in read.hash_ids:
        name = [number % VOCAB, number // VOCAB % VOCAB, number // VOCAB**2 % VOCAB]
        tokens += name + [number % 97] * (MOONCAKE_BLOCK - len(name))
    return TraceRequest(read.timestamp / 1000, tokens[:given], max(1, read.output_length))


def _checked(at: float, prompt: int, output: int) -> TraceRequest:
    """An answer of no tokens counts as one of one: its prompt is computed all the same."""
    if not (1 <= prompt <= MAX_TOKENS and 0 <= output <= MAX_TOKENS):
        raise InvalidRequest(
            f"{prompt} prompt tokens and {output} output tokens; allowed are 1 to {MAX_TOKENS:,} "
            f"and 0 to {MAX_TOKENS:,}"
        )
    return TraceRequest(at, prompt, max(1, output))


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> int:
    """Writes the lines; returns how many."""
    encoder = msgspec.json.Encoder()
    count = 0
    with open(path, "wb") as file:
        for request in requests:
            file.write(encoder.encode(request) + b"\n")
            count += 1
    return count
