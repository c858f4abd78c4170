"""One request to a pooling model, as its front end sees it."""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from collections.abc import Sequence
from typing import Literal

import msgspec

from penstock.client.media import PreparedMedia
from penstock.client.placement import NOWHERE, Holder, OpenRequest, Placement
from penstock.client.routing import Blame
from penstock.client.timing import RequestTiming
from penstock.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    Field,
    InvalidRequest,
    PenstockError,
    RequestFailed,
)
from penstock.model.media_facts import alignment_of
from penstock.model.pooling_config import PoolingConfig
from penstock.protocol.common import Pooling, PoolingTask, Stopping, TokenSampling, Vectors
from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock.protocol.to_frontend import Pooled, SequenceOutput, Welcome
from penstock.request.terms import Terms

GENERATES = "this model generates text; it gives no embeddings, scores or classes"
NO_TIMES = "this model can't say when words are spoken"

_SAMPLING = TokenSampling(0)
_STOPPING = Stopping(max_tokens=1, ignore_eos=True)


class PoolResult(msgspec.Struct, frozen=True):
    """shape, data: as Vectors.  prompt_tokens, cached_tokens: of the input."""

    vectors: Vectors
    prompt_tokens: int
    cached_tokens: int | None = None

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return self.vectors.shape[-1]

    def flat(self) -> array[float]:
        """All numbers of all rows, row by row."""
        return self._floats(self.vectors.data)

    def numbers(self, begin: int, end: int) -> list[float]:
        """Some of them: without the others, which may be many."""
        return self._floats(memoryview(self.vectors.data)[4 * begin : 4 * end]).tolist()

    def of_rows(self, rows: Sequence[int]) -> PoolResult:
        """The vectors of some of the tokens."""
        data, size = memoryview(self.vectors.data), 4 * self.size
        kept = b"".join(data[row * size : (row + 1) * size] for row in rows)
        vectors = Vectors((len(rows), self.size), kept)
        return msgspec.structs.replace(self, vectors=vectors)

    def without_vectors(self) -> PoolResult:
        """What it cost."""
        return msgspec.structs.replace(self, vectors=Vectors((0,), b""))

    @staticmethod
    def _floats(data: bytes | memoryview) -> array[float]:
        values = array("f")
        values.frombytes(data)
        if sys.byteorder == "big":
            values.byteswap()
        return values

    def values(self) -> list[float]:
        """The one vector."""
        return self.flat().tolist()

    def rows(self) -> list[list[float]]:
        """Each token's vector."""
        flat, size = self.flat(), self.size
        return [flat[at : at + size].tolist() for at in range(0, len(flat), size)]


class PoolRequest:
    """Holds the request's whole state, so that it can be submitted again when the engine core it
    ran on is gone. `key` is its number in its holder; `result` is done at its end.
    timing: records its moments, and the engine's timing."""

    def __init__(
        self,
        *,
        name: str,
        prompt_token_ids: list[int],
        pooling: Pooling,
        terms: Terms,
        placement: Placement,
        timing: RequestTiming | None = None,
        media: PreparedMedia | None = None,
    ) -> None:
        self.key = 0
        self.media = media
        self.holder: Holder = NOWHERE
        self.placement = placement
        self.name = name
        self.terms = terms
        self.blame = Blame()
        self.timing = timing
        self.result: asyncio.Future[PoolResult] = asyncio.get_running_loop().create_future()
        self._prompt_token_ids = prompt_token_ids
        self._pooling = pooling
        self._accepted = False

    @property
    def finished(self) -> bool:
        return self.result.done()

    @property
    def open_sequences(self) -> int:
        return 1

    @property
    def carried_tokens(self) -> int:
        """Tokens that its submission holds."""
        return len(self._prompt_token_ids)

    @property
    def begun(self) -> bool:
        return False

    @property
    def successor(self) -> OpenRequest:
        """What is submitted again if the request's engine core is lost: the request itself."""
        return self

    def submission(self) -> Submit:
        """The message that runs it, from the beginning."""
        if self.timing is not None:
            self.timing.submit()
        return Submit(
            request=self.key,
            name=self.name,
            prompt_token_ids=self._prompt_token_ids,
            sequences=[OpenSequence(0)],
            sampling=_SAMPLING,
            stopping=_STOPPING,
            deaths=self.blame.deaths,
            resumed=self._accepted,
            cache_salt=self.terms.cache_salt,
            tenant=self.terms.tenant,
            priority=self.terms.priority,
            time_left_ms=self.terms.time_left_ms(time.monotonic()),
            pooling=self._pooling,
            timeline=self.timing is not None,
            grant=self.terms.grant,
            adapter=self.terms.adapter,
            media=None if self.media is None else self.media.media,
            background=self.terms.background,
        )

    def take_accepted(self) -> None:
        """The engine has promised to run it."""
        self._accepted = True

    def take_entered(self) -> None:
        """Takes the news that the request is in a step."""

    def take_prepared(self) -> None:
        """Does nothing: a pooling request has no grammar."""

    def take_pooled(self, message: Pooled) -> None:
        """Takes the vectors, and ends the request."""
        if self.finished:
            return
        if self.timing is not None:
            self.timing.hear(0, message.timeline)
        if not message.vectors.is_sound():
            self.fail(RequestFailed("the engine core sent incomplete vectors"))
            return
        self.result.set_result(
            PoolResult(message.vectors, len(self._prompt_token_ids), message.cached_tokens)
        )
        self._leave()

    def _leave(self) -> None:
        if self.media is not None:
            self.media.close()
        self.holder.forget(self)

    def take(self, output: SequenceOutput) -> None:
        """A terminal output: it has failed."""
        if self.timing is not None:
            self.timing.hear(output.sequence, output.timeline)
        match output.finish:
            case "timeout":
                self.fail(DeadlineExceeded("the request's deadline passed before it was answered"))
            case "abort":
                self.fail(EngineUnavailable("the request was aborted by the server"))
            case "error" if output.error_code is not None:
                self.fail(InvalidRequest(output.error or "", param="input"))
            case _:
                self.fail(RequestFailed(output.error or "the request failed in the engine"))

    def abort(self) -> None:
        """Ends the request here and in the engine. Does nothing there when it is over."""
        if not self.finished:
            if self.timing is not None:
                self.timing.hear(0, None)  # Nothing is waited for.
            self.holder.abort(self)
            self.result.cancel()
        self._leave()

    def expire(self) -> None:
        """Ends the request at its deadline, while there is no engine core that would."""
        self.fail(DeadlineExceeded("the deadline passed while the engine core was away"))

    def fail(self, error: PenstockError) -> None:
        """Ends the request with an error."""
        if not self.finished:
            self.result.set_exception(error)
            self.result.exception()  # It may be awaited or not; marks the exception as retrieved.
        self._leave()


def pooling_model(welcome: Welcome) -> PoolingConfig:
    """How the served model makes vectors. Raises InvalidRequest for one that generates."""
    if welcome.pooling is None:
        raise InvalidRequest(GENERATES, param="model", code="unsupported_model")
    return welcome.pooling


def compares_tokens(welcome: Welcome) -> bool:
    """Whether texts are compared by late interaction. Raises InvalidRequest for a model that
    generates."""
    late = pooling_model(welcome).late
    return late is not None and late.alone


def check_task(task: PoolingTask | Literal["align"], welcome: Welcome) -> None:
    """Raises InvalidRequest unless the served model does that."""
    if task == "align":
        if alignment_of(welcome.media) is None:
            raise InvalidRequest(NO_TIMES, param="model", code="unsupported_model")
        return
    pooling_model(welcome)
    if task not in welcome.pooling_tasks:
        raise InvalidRequest(
            f"task is {task}; this model supports {', '.join(welcome.pooling_tasks)}",
            param="task",
            code="unsupported_model",
        )


def check_input(prompt_token_ids: list[int], welcome: Welcome, *, cut: bool = True) -> None:
    """Raises InvalidRequest for an input that can't run: empty, too long, ids out of range.
    cut: whether it could be."""
    limit, vocabulary = welcome.limits.max_model_len, welcome.limits.vocab_size
    if not prompt_token_ids:
        raise InvalidRequest("the input is empty; it must have at least one token", param="input")
    if len(prompt_token_ids) > limit:
        how = (" (", Field("truncate_prompt_tokens"), " cuts what is longer)") if cut else ()
        raise InvalidRequest(
            f"the input has {len(prompt_token_ids)} tokens; this model takes at most {limit}",
            *how,
            param="input",
            code="context_length_exceeded",
        )
    if min(prompt_token_ids) < 0 or max(prompt_token_ids) >= vocabulary:
        bad = next(token for token in prompt_token_ids if not 0 <= token < vocabulary)
        raise InvalidRequest(
            f"token id {bad} is not in the vocabulary, 0 to {vocabulary - 1}", param="input"
        )
