"""Records and contents of one system."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.config.storage_settings import StorageSettings
from penstock.errors import StartupError
from penstock_gateway.storage.bucket_contents import BucketContents, ObjectBucket
from penstock_gateway.storage.contents import Contents, FolderContents
from penstock_gateway.storage.folder_mark import BucketMark, FolderMark

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
            from penstock_gateway.storage.stock import StockTaking
        except ModuleNotFoundError as error:
            raise StartupError(
                f"--data-dir needs the package {error.name}: pip install 'penstock[storage]'"
            ) from None
        folder = Path(data_dir).expanduser().absolute()
        self.settings = settings
        bucket = None
        if settings.files_url is not None:
            bucket = ObjectBucket(settings.files_url, settings.s3_endpoint_url)
        self.contents: Contents = FolderContents(folder / FILES)
        if bucket is not None:
            self.contents = BucketContents(bucket, folder / SCRATCH)
        self._database = Database(settings.database_url or f"sqlite:///{folder / DATABASE}")
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
        """None: no responses are kept."""
        self.background: BackgroundRecords | None = None
        """None where no responses are kept."""
        self.conversations: ConversationRecords | None = None
        """None where no responses are kept."""
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
        """None: there is none."""
        if settings.data_dir is None and settings.stored_response_hours:
            raise StartupError("--stored-response-hours needs --data-dir")
        return None if settings.data_dir is None else cls(settings, settings.data_dir)

    def close(self) -> None:
        """Nothing is written after it."""
        self._database.close()


def new_id(kind: str) -> str:
    """An id that nobody guesses."""
    return f"{kind}-{os.urandom(16).hex()}"
