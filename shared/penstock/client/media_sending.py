"""Sends an engine core the media that it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from penstock.client.media import MediaFiles, PreparedMedia, files_beside
from penstock.client.placement import OpenRequest
from penstock.protocol.from_frontend import MediaLost
from penstock.protocol.to_frontend import NeedMedia


class MediaSending:
    """endpoint: the engine core's; files are written next to it if it is on this machine.
    requests: the open ones, by number.  send: sends a message and its frames.
    """

    def __init__(
        self, endpoint: str, requests: Mapping[int, OpenRequest], send: Callable[..., Any]
    ) -> None:
        self._files = files_beside(endpoint)
        self._open = requests
        self._send = send
        self._writing: set[asyncio.Task[None]] = set()

    @property
    def writing(self) -> bool:
        """Whether files are being written."""
        return bool(self._writing)

    def answer(self, asked: NeedMedia) -> None:
        """Sends an item, or a part of it. Nothing for a request that is over: the engine core is
        notified of that."""
        request = self._open.get(asked.request)
        if request is None:
            return
        media = request.media
        if media is None:
            self._send(MediaLost(asked.request, asked.item))
            return
        files, large = self._files, media.large_file(asked)
        if files is None or large is None:
            self._send(*media.answer(asked, files))
            return
        writing = asyncio.create_task(self._write(asked, request, media, files, *large))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def _write(
        self,
        asked: NeedMedia,
        request: OpenRequest,
        media: PreparedMedia,
        files: MediaFiles,
        name: str,
        data: memoryview,
    ) -> None:
        async with files.written(name, data) as there:
            if self._open.get(asked.request) is request:
                self._send(*media.answer(asked, files if there else None))

    def cancel(self) -> None:
        """Sends nothing more. Called in the event loop."""
        for writing in self._writing:
            writing.cancel()

    def close(self) -> None:
        """Removes the files."""
        if self._files is not None:
            self._files.close()
