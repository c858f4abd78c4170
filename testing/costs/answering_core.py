"""Engine cores that compute nothing and answer everything, in a process of their own.

    python -m testing.costs.answering_core FOLDER NAME...

There is one for each name of testing.costs.models; their sockets lie in FOLDER.  Each line
that is read says what is answered from then on (`Answer` as JSON); a line says that it is so.
"""

from __future__ import annotations

import itertools
import os
import select
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
import zmq

from penstock.config.settings import SchedulerSettings, TransportSettings
from penstock.protocol.common import Pooling, TokenLogprobs, Vectors
from penstock.protocol.from_frontend import Abort, Advance, Finish, FromFrontend, Hello, Submit
from penstock.protocol.to_frontend import (
    Accepted,
    Outputs,
    Pooled,
    Prepared,
    SequenceOutput,
    ToFrontend,
)
from penstock.transport.events import Ended, Opened, Received
from penstock.transport.session_server import SessionServer
from penstock_engine.sessions.output_messages import is_large, messages
from testing.costs.models import MODELS, ServedModel
from testing.scripted_engine import STATUS

AT_ONCE = 256
"""Sequences in one step, at most."""
BUDGET = SchedulerSettings().max_num_batched_tokens
"""Tokens of one step, of prompts and answers."""
PAUSE = 0.002
"""Seconds between two steps, at least: what comes of one isn't counted for another."""
STEP = 8
"""Tokens that a step brings a sequence."""
USUAL = 8
"""Tokens of an answer that isn't told to be longer."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What sequences say. text: again and again, until `tokens`, or max_tokens where the model's
    own end is ignored."""

    text: str = " then"
    tokens: int = USUAL


class _Open:
    """A request that is being answered."""

    def __init__(self, submit: Submit, steps: Iterator[list[SequenceOutput]]) -> None:
        self.submit, self.steps = submit, steps
        self.ended: set[int] = set()


class AnsweringCore:
    """The engine core of one model."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: Path, name: str) -> None:
        self._model: ServedModel = MODELS[name]()
        self._boot = name.encode().ljust(8, b"-")
        self._server: SessionServer[FromFrontend] = SessionServer(
            context,
            f"ipc://{folder}/{name}",
            msgspec.msgpack.Decoder(FromFrontend),
            TransportSettings(),
            self._boot,
        )
        self.socket = self._server.socket
        self._sessions: set[bytes] = set()
        self._open: dict[tuple[bytes, int], _Open] = {}
        self._status_due = self._step_due = 0.0
        self.answer = Answer()

    def turn(self) -> bool:
        """Whether there is more to say."""
        now = time.monotonic()
        for event in self._server.poll(now):
            match event:
                case Opened(session, Hello()):
                    self._sessions.add(session)
                    welcome = msgspec.structs.replace(self._model.welcome, boot=self._boot.hex())
                    self._server.send(session, welcome, list(self._model.frames))
                    self._status_due = 0.0
                case Ended(session):
                    self._ended(session)
                case Received(session, Submit() as submit):
                    self._submitted(session, submit)
                case Received(session, Advance() as advance):
                    self._advanced(session, advance)
                case Received(session, Finish() as finish):
                    self._finished(session, finish)
                case Received(session, Abort() as abort):
                    self._open.pop((session, abort.request), None)
        if now >= self._status_due:
            self._status_due = now + TransportSettings().beat_interval
            for session in self._sessions:
                self._send(session, msgspec.structs.replace(STATUS, fingerprint="f"))
        self._step(now)
        return bool(self._open)

    def _send(self, session: bytes, message: ToFrontend) -> None:
        self._server.send(session, message)

    def _ended(self, session: bytes) -> None:
        self._sessions.discard(session)
        for key in [key for key in self._open if key[0] == session]:
            del self._open[key]

    def _submitted(self, session: bytes, submit: Submit) -> None:
        self._send(session, Accepted(submit.request))
        if submit.grammar is not None:
            self._send(session, Prepared(submit.request))
        if submit.beams:
            self._beams(session, submit, [each.index for each in submit.sequences])
        self._open[session, submit.request] = _Open(submit, self._steps(submit))

    def _vectors(self, pooling: Pooling, tokens: int) -> Vectors:
        config = self._model.welcome.pooling
        assert config is not None
        if pooling.task == "embed_sparse":
            places = b"".join(n.to_bytes(4, "little") for n in range(min(tokens, 256)))
            return Vectors((len(places) // 4,), bytes(len(places)), places)
        size = len(config.labels) if pooling.task == "classify" else config.size
        row = config.row_size(pooling.task)
        shape = (tokens, row) if row else (pooling.dimensions or size,)
        numbers = 1
        for each in shape:
            numbers *= each
        return Vectors(shape, b"\0\0\x80\x3f" * numbers)

    def _steps(self, submit: Submit) -> Iterator[list[SequenceOutput]]:
        request, answer = submit.request, self.answer
        if submit.beams:
            return
        asked = submit.stopping
        most = asked.max_tokens if asked.ignore_eos else min(asked.max_tokens, answer.tokens)
        said = list(itertools.islice(itertools.cycle(self._model.ids(answer.text)), max(1, most)))
        cached: int | None = 0
        wanted = submit.sampling.prompt_logprobs
        if wanted is not None:
            prompt = submit.prompt_token_ids
            for at in range(1, len(prompt), BUDGET):
                count = len(prompt[at : at + BUDGET])
                of_prompt = [_logprobs(wanted)] * count
                yield [SequenceOutput(request, 0, prompt_logprobs=of_prompt, cached_tokens=cached)]
                cached = None
        ids, ended = submit.sampling.logprob_ids, "length" if most == asked.max_tokens else "stop"
        for at in range(0, len(said), STEP):
            tokens = said[at : at + STEP]
            top = submit.sampling.logprobs
            entries = None if top is None else [_logprobs(len(ids) or top)] * len(tokens)
            last = at + STEP >= len(said)
            for first in range(0, len(submit.sequences), AT_ONCE):
                yield [
                    SequenceOutput(
                        request,
                        each.index,
                        tokens,
                        entries,
                        ended if last else None,  # type: ignore[arg-type]
                        cached_tokens=cached,
                    )
                    for each in submit.sequences[first : first + AT_ONCE]
                ]
                cached = None

    def _beams(self, session: bytes, submit: Submit, indexes: list[int]) -> None:
        top = submit.sampling.logprobs or 1
        entries = [_logprobs(top)]
        outputs = [
            SequenceOutput(
                submit.request, index, self._model.ids(self.answer.text)[:1], entries, "length"
            )
            for index in indexes
        ]
        self._send(session, Outputs(outputs))

    def _advanced(self, session: bytes, advance: Advance) -> None:
        found = self._open.get((session, advance.request))
        if found is not None:
            self._beams(session, found.submit, [each.index for each in advance.sequences])

    def _finished(self, session: bytes, finish: Finish) -> None:
        found = self._open.get((session, finish.request))
        if found is not None and finish.sequence not in found.ended:
            found.ended.add(finish.sequence)
            output = SequenceOutput(finish.request, finish.sequence, finish="stop")
            self._send(session, Outputs([output]))

    def _step(self, now: float) -> None:
        """A step: what requests gain in it, one after the other, until its budget is spent."""
        if now < self._step_due:
            return
        self._step_due = now + PAUSE
        by_session: dict[bytes, list[SequenceOutput]] = {}
        tokens = sequences = 0
        for key, found in list(self._open.items()):
            if tokens >= BUDGET or sequences >= AT_ONCE:
                break
            submit = found.submit
            if submit.pooling is not None:
                vectors = self._vectors(submit.pooling, len(submit.prompt_token_ids))
                self._send(key[0], Pooled(submit.request, vectors))
                tokens, sequences = tokens + len(submit.prompt_token_ids), sequences + 1
                del self._open[key]
                continue
            outputs = next(found.steps, None)
            if outputs is None:
                if not found.submit.beams:
                    del self._open[key]
                continue
            # Next time others come first.
            self._open[key] = self._open.pop(key)
            kept = [each for each in outputs if each.sequence not in found.ended]
            by_session.setdefault(key[0], []).extend(kept)
            sequences += len(kept)
            tokens += sum(len(each.tokens) + len(each.prompt_logprobs or ()) for each in kept)
        for session, outputs in by_session.items():
            for part in messages(outputs, large=any(map(is_large, outputs))):
                self._send(session, Outputs(part))


def _logprobs(top: int) -> TokenLogprobs:
    ids = tuple(100 + place for place in range(max(1, top)))
    return TokenLogprobs(-1.25, ids, tuple(-1.25 - place for place in range(len(ids))))


def main(folder: str, *names: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    cores = [AnsweringCore(context, Path(folder), name) for name in names]
    print("ready", flush=True)
    poller = zmq.Poller()
    for core in cores:
        poller.register(core.socket, zmq.POLLIN)
    lines: deque[bytes] = deque()
    rest = b""
    while True:
        busy = [core.turn() for core in cores]
        poller.poll(1 if any(busy) else 10)
        while select.select([0], [], [], 0)[0]:
            read = os.read(0, 1 << 16)
            if not read:
                return
            *whole, rest = (rest + read).split(b"\n")
            lines.extend(whole)
        while lines:
            answer = msgspec.json.decode(lines.popleft(), type=Answer)
            for core in cores:
                core.answer = answer
            print("set", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
