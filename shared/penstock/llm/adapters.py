"""The adapters that the library's calls name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.errors import InvalidRequest
from penstock.protocol.common import AdapterFile
from penstock.request.lora import LoRARequest
from penstock.request.terms import Terms

GivenAdapters = LoRARequest | Sequence[LoRARequest | None] | None
"""One adapter for all prompts, or one each; None for the model alone."""

MAX_KNOWN = 256
"""Adapters that are not read again while their files stay as they are, fit or unfit."""


_NO_FILE = 2
"""Parts of the identity of a path where no file is."""


class LibraryAdapters:
    """Reads each adapter once, for as long as its files have the same size and time."""

    def __init__(self, cache_dir: str | None) -> None:
        self._cache_dir = cache_dir
        self._known: dict[tuple[object, ...], AdapterFile | InvalidRequest] = {}
        self._reading = asyncio.Lock()

    async def apply(self, terms: list[Terms], given: GivenAdapters, max_rank: int) -> list[Terms]:
        """The terms, each with its adapter. max_rank: of those that are served; 0: none are.

        Raises InvalidRequest for an adapter that can't be served.
        """
        if given is None:
            return terms
        requests = [given] * len(terms) if isinstance(given, LoRARequest) else list(given)
        if len(requests) != len(terms):
            raise InvalidRequest(
                f"there are {len(terms)} prompts and {len(requests)} adapters; give one for all, or"
                " one for each",
                param="lora_request",
            )
        files = [await self._file(each, max_rank) for each in requests]
        return [
            msgspec.structs.replace(each, adapter=file)
            for each, file in zip(terms, files, strict=True)
        ]

    async def _file(self, request: LoRARequest | None, max_rank: int) -> AdapterFile | None:
        if request is None:
            return None
        if not isinstance(request, LoRARequest):
            raise InvalidRequest(
                f"lora_request must be a LoRARequest, not {type(request).__name__}",
                param="lora_request",
            )
        if not max_rank:
            raise InvalidRequest(
                "adapters are not served: LLM(..., enable_lora=True)", param="lora_request"
            )
        async with self._reading:
            key = (max_rank, *await asyncio.to_thread(_identity, request.lora_path))
            found = self._known.get(key)
            if found is None:
                found = await asyncio.to_thread(self._read, request.lora_path, max_rank)
                # Nothing is known of files that aren't there.
                if isinstance(found, AdapterFile) or len(key) > _NO_FILE:
                    self._remember(key, found)
            if isinstance(found, InvalidRequest):
                raise InvalidRequest(found.message, param=found.param, code=found.code)
            return found

    def _remember(self, key: tuple[object, ...], found: AdapterFile | InvalidRequest) -> None:
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = found

    def _read(self, path: str, max_rank: int) -> AdapterFile | InvalidRequest:
        """The adapter's copy, or why it can't be served."""
        from penstock.prepare.adapters import prepare_adapter

        try:
            return prepare_adapter(path, max_rank=max_rank, cache_dir=self._cache_dir).file
        except InvalidRequest as error:
            return error


def _identity(path: str) -> tuple[object, ...]:
    """What identifies an adapter's files: it is another one once they have changed."""
    from penstock.prepare.adapters import FILES

    found: list[object] = [path]
    for file in (Path(path).expanduser(), *(Path(path).expanduser() / name for name in FILES)):
        try:
            about = os.stat(file)
        except OSError:
            continue  # Reading it reports what is missing.
        found += [about.st_ino, about.st_size, about.st_mtime_ns]
    return tuple(found)
