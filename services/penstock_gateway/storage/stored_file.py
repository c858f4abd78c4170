"""A stored file as a request's medium or document."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import InvalidRequest
from penstock.process import logs
from penstock_gateway.http.errors import clip, unavailable

if TYPE_CHECKING:
    from penstock_gateway.storage.store import Store

log = logs.get(__name__)

RETRY_AFTER = 30.0
"""Seconds after which a disk or a store may have an answer again."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Reads the bytes of a file of the owner's."""

    store: Store
    owner: str
    file_id: str
    where: str

    def __call__(self, take: Callable[[int], None]) -> Awaitable[bytes]:
        """take: asked for room first. Raises InvalidRequest, and HTTPError (503) for a file that
        can't be read."""
        return _stored(self.store, self.owner, self.file_id, self.where, take)


async def _stored(
    store: Store, owner: str, file_id: str, where: str, take: Callable[[int], None]
) -> bytes:
    record = await store.files.find(owner, file_id)
    if record is not None:
        take(record.bytes)
        try:
            return await asyncio.to_thread(lambda: b"".join(store.contents.read(record.id)))
        except FileNotFoundError:
            # Deleted meanwhile, or --data-dir isn't the folder of whoever wrote it.
            log.error("a file's contents are missing", file=record.id)
        except OSError as error:
            log.error("stored contents can't be read", file=record.id, reason=str(error))
            raise unavailable(
                f"{where}: the file can't be read at the moment", "storage_unavailable", RETRY_AFTER
            ) from None
    raise InvalidRequest(
        f"{where}: there is no file {clip(file_id)}", param=where, code="file_not_found"
    )
