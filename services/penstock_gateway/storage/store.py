"""Records and contents of one system, and how much is stored, all in all."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config.storage_settings import StorageSettings
from penstock.errors import StartupError
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.storage.bucket_contents import BucketContents, ObjectBucket
from penstock_gateway.storage.contents import Contents, FolderContents
from penstock_gateway.storage.marks import BucketMark, FolderMark
from penstock_gateway.storage.records import ENDED

# SQLAlchemy is an extra, and every gateway imports this module: only a store imports it.
if TYPE_CHECKING:
    from sqlalchemy import Connection

    from penstock_gateway.storage.database import Database

LOOK_EVERY = 5.0
"""Seconds for which what was counted is good enough. It costs a look at every file's record."""
LEAST_APART = 200
"""Durations of a look that pass before the next one: over a million records it takes a second, and
every process that serves /metrics looks."""
MOST_APART = 300.0
"""Seconds after which the next look comes, however long one takes."""


@dataclass(frozen=True, slots=True)
class Stock:
    """What is stored for all tenants.  batches: how many, by status.  waiting_lines: of batches
    that haven't ended, without an answer; those of a file that hasn't been read yet aren't
    known."""

    batches: dict[str, int]
    waiting_lines: int
    files: int
    file_bytes: int
    responses: int
    response_bytes: int


class StockTaking:
    """Counts no more often than it has to, whoever asks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counting = asyncio.Lock()
        self._next_look = float("-inf")
        self.latest: Stock | None = None
        """The latest counts; None until the database has given an answer."""

    async def look(self) -> None:
        """Sees to it that `latest` is some seconds old at most; more, where counting takes long, or
        the database has no answer."""
        async with self._counting:
            if time.monotonic() < self._next_look:
                return
            apart = LOOK_EVERY
            with suppress(HTTPError):
                self.latest, seconds = await self._database.read(_counted_in)
                apart = min(max(LOOK_EVERY, LEAST_APART * seconds), MOST_APART)
            self._next_look = time.monotonic() + apart


def _counted_in(connection: Connection) -> tuple[Stock, float]:
    """Also the seconds that it took, without those in which it waited for a thread."""
    begun = time.monotonic()
    stock = _counted(connection)
    return stock, time.monotonic() - begun


def _counted(connection: Connection) -> Stock:
    from sqlalchemy import func, select

    from penstock_gateway.storage.tables import answers, batches, files, responses

    by_status = select(batches.c.status, func.count()).group_by(batches.c.status)
    found = {str(status): int(count) for status, count in connection.execute(by_status)}
    total = select(func.coalesce(func.sum(batches.c.total), 0)).where(
        batches.c.status.not_in(ENDED)
    )
    # There are answers in the database only of batches that haven't ended.
    answered = connection.scalar(select(func.count()).select_from(answers)) or 0
    size = func.coalesce(func.sum(files.c.bytes), 0)
    count, held = connection.execute(select(func.count(), size).select_from(files)).one()
    size = func.coalesce(func.sum(responses.c.bytes), 0)
    kept, taken = connection.execute(select(func.count(), size).select_from(responses)).one()
    return Stock(
        batches=found,
        waiting_lines=max(0, int(connection.scalar(total) or 0) - int(answered)),
        files=int(count),
        file_bytes=int(held),
        responses=int(kept),
        response_bytes=int(taken),
    )


FILES, SCRATCH = "files", "scratch"
DATABASE = "penstock.db"


class Store:
    """What a process needs of it.  Raises StartupError."""

    def __init__(self, settings: StorageSettings, data_dir: str) -> None:
        try:
            from penstock_gateway.storage.background_records import BackgroundRecords
            from penstock_gateway.storage.batch_records import BatchRecords
            from penstock_gateway.storage.conversation_records import ConversationRecords
            from penstock_gateway.storage.database import Database, DatabaseDamaged
            from penstock_gateway.storage.file_records import FileRecords, all_ids
            from penstock_gateway.storage.held_batches import HeldBatches
            from penstock_gateway.storage.response_records import ResponseRecords
        except ModuleNotFoundError as error:
            raise StartupError(
                f"--data-dir needs the package {error.name}: pip install 'penstock-llm[storage]'"
            ) from None
        folder = Path(data_dir).expanduser().absolute()
        self.settings = settings
        bucket = None
        if settings.files_url is not None:
            bucket = ObjectBucket(settings.files_url, settings.s3_endpoint_url)
        self.contents: Contents = FolderContents(folder / FILES)
        if bucket is not None:
            self.contents = BucketContents(bucket, folder / SCRATCH)
        self._database = Database(
            settings.database_url or f"sqlite:///{folder / DATABASE}",
            connections=settings.database_pool_size,
        )
        self.mark = FolderMark(folder, self._database.id)
        if bucket is not None:
            self.mark = BucketMark(bucket, self._database.id)
        try:
            if not self._database.damaged:
                self.mark.claim(self.contents.ids(), lambda: self._database.transaction(all_ids))
        except DatabaseDamaged:
            pass
        except BaseException:
            self.close()
            raise
        self.files = FileRecords(self._database)
        self.batches = BatchRecords(self._database)
        self.message_batches = BatchRecords(self._database, of_messages=True)
        self.held = HeldBatches(self._database)
        self.stock = StockTaking(self._database)
        self.responses: ResponseRecords | None = None
        """The kept responses; None if none are kept."""
        self.background: BackgroundRecords | None = None
        """The work in the background; None if no responses are kept."""
        self.conversations: ConversationRecords | None = None
        """The kept conversations; None if no responses are kept."""
        if settings.stored_response_hours:
            self.responses = ResponseRecords(
                self._database,
                most=settings.max_stored_responses,
                most_bytes=settings.max_stored_response_bytes,
                seconds=3600 * settings.stored_response_hours,
            )
            self.background = BackgroundRecords(self._database, self.responses)
            self.conversations = ConversationRecords(
                self._database,
                most=settings.max_stored_conversations,
                most_items=settings.max_conversation_items,
                most_bytes=settings.max_stored_response_bytes,
                seconds=3600 * settings.stored_response_hours,
            )

    @classmethod
    def of(cls, settings: StorageSettings) -> Store | None:
        """The store that the settings ask for; None if they ask for none."""
        if settings.data_dir is None and settings.stored_response_hours:
            raise StartupError("--stored-response-hours needs --data-dir")
        return None if settings.data_dir is None else cls(settings, settings.data_dir)

    def close(self) -> None:
        """Closes the database; nothing is written afterwards."""
        self._database.close()


def new_id(kind: str) -> str:
    """An id that nobody guesses."""
    return f"{kind}-{os.urandom(16).hex()}"
