"""Records and contents of one system."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.config.storage_settings import StorageSettings
from penstock.errors import StartupError
from penstock_gateway.storage.contents import Contents

FILES = "files"
DATABASE = "penstock.db"


class Store:
    """What a process needs of it.  Raises StartupError."""

    def __init__(self, settings: StorageSettings, data_dir: str) -> None:
        try:
            from penstock_gateway.storage.batch_records import BatchRecords
            from penstock_gateway.storage.database import Database
            from penstock_gateway.storage.file_records import FileRecords
        except ModuleNotFoundError as error:
            raise StartupError(
                f"--data-dir needs the package {error.name}: pip install 'penstock[storage]'"
            ) from None
        folder = Path(data_dir).expanduser().absolute()
        self.settings = settings
        self.contents = Contents(folder / FILES)
        self._database = Database(settings.database_url or f"sqlite:///{folder / DATABASE}")
        self.files = FileRecords(self._database)
        self.batches = BatchRecords(self._database)

    @classmethod
    def of(cls, settings: StorageSettings) -> Store | None:
        """None: there is none."""
        return None if settings.data_dir is None else cls(settings, settings.data_dir)

    def close(self) -> None:
        """Nothing is written after it."""
        self._database.close()


def new_id(kind: str) -> str:
    """An id that nobody guesses."""
    return f"{kind}-{os.urandom(16).hex()}"
