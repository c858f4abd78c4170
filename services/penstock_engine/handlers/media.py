"""What front ends and workers say of media, and what it does to requests."""

from __future__ import annotations

from penstock.errors import InvalidRequest
from penstock.protocol.common import Stopping
from penstock.protocol.from_frontend import MediaChunk, MediaFile, MediaLost, Submit
from penstock.protocol.from_worker import MediaFailed, MediaReady, MediaTaken
from penstock.protocol.media import Media
from penstock_engine.core_state import CoreState
from penstock_engine.handlers.finisher import Finisher
from penstock_engine.handlers.media_checks import (
    check_alone,
    check_media,
    lacks_encoder_item,
    misfit,
)
from penstock_engine.media.loads import TIMEOUT
from penstock_engine.request.request import Request
from penstock_engine.request.states import SequenceState
from penstock_engine.sessions.frontends import FrontendSession

MAX_PATH = 4096
"""Characters of a file's path."""


class MediaHandler:
    """Passes items on to workers, and ends requests whose items can't be used."""

    def __init__(self, state: CoreState, finisher: Finisher) -> None:
        self._state = state
        self._finisher = finisher

    def check(self, submit: Submit) -> None:
        """Raises InvalidRequest for media that can't be, or can never run here."""
        prompt_tokens = len(submit.prompt_token_ids)
        if submit.media is not None:
            facts = self._state.facts
            if not self._state.has("media"):
                raise InvalidRequest("this model takes no images, audio or video", param="media")
            check_media(submit.media, prompt_tokens)
            if facts.whole:
                check_alone(submit.media, prompt_tokens)
        wrong = self._misfit(submit.media, prompt_tokens, submit.stopping)
        if wrong is not None:
            raise InvalidRequest(wrong, param="media")

    def _misfit(self, media: Media | None, prompt_tokens: int, stopping: Stopping) -> str | None:
        manager, ready = self._state.media, self._state.workers.ready
        whole_spans = self._state.scheduling.whole_spans
        if manager.encoder_rows:
            wrong = lacks_encoder_item(media, prompt_tokens, manager.encoder_rows)
            if wrong is not None:
                return wrong
        if media is None:
            return None
        # The last token of a prompt that is only scored is not computed.
        scored = not stopping.max_tokens and media.spans[-1].end == prompt_tokens
        if whole_spans and scored:
            return "a prompt that ends with media can't be scored; max_tokens must be 1 or more"
        return misfit(
            media,
            rows=None if ready is None else ready.media_rows,
            load_bytes=manager.loads.capacity,
            step_tokens=self._state.scheduling.budget if whole_spans else None,
            step_holds=self._state.scheduling.step_holds if whole_spans else None,
        )

    def end_misfits(self) -> None:
        """Ends what can't run any more: another worker has come, or steps have become smaller."""
        for request in list(self._state.frontends.requests()):
            media = None if request.media is None else request.media.media
            prompt_tokens = len(request.prompt_token_ids)
            wrong = self._misfit(media, prompt_tokens, request.stopping)
            if wrong is not None:
                self._fail(request, wrong)

    def received(
        self, frontend: FrontendSession, message: MediaFile | MediaChunk | MediaLost, data: bytes
    ) -> None:
        """An answer to NeedMedia. data: of a chunk."""
        request = frontend.requests.get(message.request)
        entry = None if request is None else self._state.media.exchange.find(request, message.item)
        if request is None or entry is None:
            return  # It was asked for by a request that has ended, or before a worker was lost.
        match message:
            case MediaFile(path=path):
                sound = path.startswith("/") and len(path) <= MAX_PATH and "\0" not in path
                if sound and not entry.chunks:
                    self._state.media.exchange.take_file(entry, path)
                    return
            case MediaChunk(offset=offset, size=size):
                if self._state.media.exchange.take_chunk(entry, offset, size, data):
                    return
        self._fail(
            request, f"item {message.item} of its media differs from the one that was requested"
        )

    def expire(self, now: float) -> None:
        """Ends the requests whose front ends don't send what they are asked for."""
        while (request := self._state.media.exchange.overdue(now)) is not None:
            self._fail(request, f"its media did not arrive within {TIMEOUT:g} s")

    def answered(
        self, message: MediaTaken | MediaReady | MediaFailed, rank: int, now: float
    ) -> None:
        """Handles a rank's answer about an item. One that it can't use ends the requests that need
        it, and no others."""
        exchange = self._state.media.exchange
        if isinstance(message, MediaFailed):
            failed = exchange.answered(message.name, rank, now, message.reason, message.code)
        else:  # Another may have failed before.
            work = message.work if isinstance(message, MediaReady) else 0
            failed = exchange.answered(message.name, rank, now, work=work)
        if failed is None:
            return
        for request in failed.requests:
            self._fail(request, f"its media can't be used: {failed.reason}")

    def _fail(self, request: Request, error: str) -> None:
        self._finisher.end_all(
            request, SequenceState.FINISHED_FAILED, error=error, error_code="invalid_media"
        )
