"""Contents of files in an S3-compatible store, by boto3.

A file is first written to disk, so a client's slow or refused upload never reaches the store; then
it is sent there as a whole.
"""

from __future__ import annotations

import errno
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from penstock.errors import StartupError
from penstock_gateway.storage.contents import (
    ABANDONED_SECONDS,
    CHUNK,
    Contents,
    ContentsWriter,
    checked_id,
    is_id,
    make_folder,
    sweep_folder,
)

CONNECT_SECONDS, READ_SECONDS = 10, 60
"""How long the store may take to be reached, and be silent."""
TRIES = 3
MISSING = ("404", "NoSuchKey", "NotFound")
"""What the store says of what isn't there."""


class ObjectBucket:
    """Objects below one prefix. url: s3://BUCKET/PREFIX.  endpoint: of the store; None: Amazon's.
    Who we are, and the region, is in the environment, as for every client of S3. Methods raise
    OSError; the constructor StartupError."""

    def __init__(self, url: str, endpoint: str | None) -> None:
        try:
            import boto3
            from boto3.exceptions import Boto3Error
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ModuleNotFoundError as error:
            raise StartupError(
                f"--files-url needs the package {error.name}: pip install 'penstock-llm[s3]'"
            ) from None
        self._errors = (BotoCoreError, ClientError, Boto3Error)
        parts = urlsplit(url)
        self.url = url
        self._bucket = parts.netloc
        self._prefix = f"{parts.path.strip('/')}/".removeprefix("/")
        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"mode": "standard", "total_max_attempts": TRIES},
            # Other stores know no buckets as host names, and not all know checksums of parts.
            s3={"addressing_style": "auto" if endpoint is None else "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            session = boto3.session.Session()
            self._client: Any = session.client("s3", endpoint_url=endpoint, config=config)
        except (*self._errors, ValueError) as error:
            raise StartupError(f"--files-url: {url} can't be used: {error}") from None

    def get(self, name: str) -> Any:
        """The object's bytes as a stream, which the caller closes. Raises FileNotFoundError."""
        with self._told(name):
            return self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"]

    def read(self, name: str) -> Iterator[bytes]:
        """The object's bytes in pieces. Raises FileNotFoundError, and OSError where it breaks
        off."""
        body = self.get(name)
        try:
            with self._told(name):
                yield from body.iter_chunks(CHUNK)
        finally:
            body.close()

    def put(self, name: str, file: Path) -> None:
        """The object is there once all of it is."""
        with self._told(name):
            self._client.upload_file(str(file), self._bucket, self._prefix + name)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Stores an object of these bytes, which is there once all of it is."""
        with self._told(name):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)

    def remove(self, name: str) -> None:
        """Removes an object. It is no error if there is none."""
        with self._told(name):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def list(self) -> Iterator[tuple[str, float]]:
        """Names, and when each was written, in Unix seconds."""
        with self._told("the list of files"):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for each in page.get("Contents", ()):
                    name = str(each["Key"]).removeprefix(self._prefix)
                    yield name, each["LastModified"].timestamp()

    @contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """What the library raises, as OSError."""
        try:
            yield
        except self._errors as error:
            code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
            if code in MISSING:
                raise FileNotFoundError(errno.ENOENT, "there is no such object", name) from None
            raise OSError(errno.EIO, f"{self.url}: {error}") from error


class BucketContents(Contents):
    """scratch: a folder for what is on its way."""

    def __init__(self, bucket: ObjectBucket, scratch: Path) -> None:
        self._bucket = bucket
        self._scratch = scratch
        make_folder(scratch)

    def writer(self, file_id: str) -> ContentsWriter:
        return _BucketWriter(self._bucket, self._scratch / checked_id(file_id))

    def open(self, file_id: str) -> BinaryIO:
        # The caller closes it.
        file = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115
        try:
            for part in self.read(file_id):
                file.write(part)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return cast("BinaryIO", file)

    def read(self, file_id: str) -> Iterator[bytes]:
        return self._bucket.read(checked_id(file_id))

    def remove(self, file_id: str) -> None:
        self._bucket.remove(checked_id(file_id))

    def ids(self) -> Iterator[str]:
        return (name for name, _ in self._bucket.list() if is_id(name))

    def remove_abandoned(self, known: Iterable[str]) -> None:
        leads, limit = set(known), time.time() - ABANDONED_SECONDS
        for name, written in list(self._bucket.list()):
            if is_id(name) and name not in leads and written < limit:
                self._bucket.remove(name)
        sweep_folder(self._scratch, ())


class _BucketWriter(ContentsWriter):
    """path: where it would lie in the scratch folder."""

    def __init__(self, bucket: ObjectBucket, path: Path) -> None:
        super().__init__(path)
        self._bucket = bucket

    def _settle(self, part: Path) -> None:
        self._bucket.put(self._path.name, part)
