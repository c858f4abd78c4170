"""The part of AsyncLLM that makes texts of recordings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from penstock.llm.running_transcript import RunningTranscript
from penstock.media.sources import MediaSource
from penstock.request.terms import Terms
from penstock.transcription.begin import begin
from penstock.transcription.transcript import Transcript
from penstock.transcription.wishes import Wishes


class AsyncTranscription:
    """Mixed into AsyncLLM."""

    async def transcribe(
        self: Any,
        audio: str | os.PathLike[str] | bytes,
        wishes: Wishes | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        deadline_ms: float | None = None,
    ) -> Transcript:
        """The text of a recording, given as a file's path or its bytes. request_id, priority and
        deadline_ms: as for generate.

        Cancelling the call aborts its requests.  Raises InvalidRequest for anything that is no
        recording and for a model that doesn't transcribe; DeadlineExceeded; RequestFailed if
        `abort` ended it.
        """
        await self.start()
        terms = Terms.checked(priority=priority, deadline_ms=deadline_ms)
        data, path = (audio, None) if isinstance(audio, bytes) else (None, Path(audio))
        source = MediaSource("audio", kind="audio", data=data, path=path)
        name = self._free_name(request_id)
        running = RunningTranscript(self._transcript(source, wishes or Wishes(), name, terms))
        self._running[name] = running
        try:
            return await running.whole()
        finally:
            self._running.pop(name, None)

    async def _transcript(
        self: Any, source: MediaSource, wishes: Wishes, name: str, terms: Terms
    ) -> Transcript:
        client, desk = self._started(), self._desk
        with desk.lease(terms.tenant, terms.deadline) as lease:
            transcriber = await begin(
                client, desk, self.text, source, lease, wishes, name=name, terms=terms
            )
            return await Transcript(transcriber).filled()
