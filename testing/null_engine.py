"""An engine core that computes nothing: real sessions, a token a turn for each stream.

    python -m testing.null_engine ENDPOINT BOARD --streams 1000 --tokens 100 ...

It waits until all streams are submitted and the board says go.  A turn is one Outputs message for
`--group` streams at most (the engine core's max_num_seqs); turns go round the groups.  Each token
is the same word of WORD_BYTES bytes, so that a reader can count tokens without parsing.

With --at-once, a request is answered when it comes, by one token, and nothing is waited for.
"""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path

import msgspec
import zmq

from penstock.config.settings import TransportSettings
from penstock.prepare import prepare
from penstock.prepare.folder import CHAT_TEMPLATE, TOKENIZER, load_manifest
from penstock.protocol.from_frontend import FromFrontend, Hello, Submit
from penstock.protocol.to_frontend import (
    Accepted,
    Limits,
    Outputs,
    SequenceOutput,
    ToFrontend,
    Welcome,
)
from penstock.text.tokenizer import Tokenizer
from penstock.transport.events import Opened, Received
from penstock.transport.session_server import SessionServer
from testing.board import Board
from testing.scripted_engine import STATUS, WELCOME

MODEL = "smollm2-135m"
WORD = " then"
WORD_BYTES = len(WORD)
BOOT = b"null-eng"
PACE = 0.0002
"""Seconds between looks at the board."""
LONGEST = 0.01
"""Seconds after which it looks whether the client has read all, and a Status is due."""


class NullEngine:
    def __init__(self, flags: argparse.Namespace, board: Board) -> None:
        self._flags, self._board = flags, board
        self._server: SessionServer[FromFrontend] = SessionServer(
            zmq.Context(),
            flags.endpoint,
            msgspec.msgpack.Decoder(FromFrontend),
            TransportSettings(),
            BOOT,
        )
        folder = prepare(MODEL)
        self._facts = load_manifest(folder)
        self._frames = [(folder / name).read_bytes() for name in (TOKENIZER, CHAT_TEMPLATE)]
        self._word = self._one_token()
        self._session = b""
        self._requests: dict[int, int] = {}
        """Request numbers by the streams' own, which their seeds tell."""
        starts = range(0, flags.streams, flags.group)
        self._groups = [range(a, min(a + flags.group, flags.streams)) for a in starts]
        self._status_due = 0.0

    def _one_token(self) -> int:
        tokenizer = Tokenizer(self._frames[0], add_bos=False, bos_token_id=None)
        (token,) = tokenizer.encode(WORD)
        return token

    def run(self) -> None:
        """Runs until the board says that the client has read everything."""
        while self._flags.at_once and not self._board.ended:
            self._listen()
            self._rest(LONGEST)
        turn, turns = 0, self._flags.tokens * len(self._groups)
        begun = 0.0
        while not self._board.ended:
            self._listen()
            if turn == turns or not self._board.go:
                self._rest(PACE)
                continue
            now = time.monotonic()
            begun = begun or now
            due = self._due(turn, begun)
            if now < due:
                self._rest(due - now if self._flags.rate else PACE)
                continue
            self._give(turn)
            turn += 1

    def _rest(self, seconds: float) -> None:
        """Waits for so long at most; the longer it may, the less processor time it takes from those
        that are measured."""
        milliseconds = int(1000 * min(seconds, LONGEST))
        if milliseconds:
            self._server.socket.poll(milliseconds)
        else:
            time.sleep(seconds)

    def _due(self, turn: int, begun: float) -> float:
        streams, rate = self._flags.streams, self._flags.rate
        round_, group = divmod(turn, len(self._groups))
        if rate:
            return begun + (round_ + group / len(self._groups)) * streams / rate
        unread = round_ * streams + self._groups[group].start - self._board.received
        return 0.0 if unread < self._flags.window * streams else float("inf")

    def _give(self, turn: int) -> None:
        number, group = divmod(turn, len(self._groups))
        finish = "length" if number == self._flags.tokens - 1 else None
        cached = 0 if number == 0 else None
        outputs = [
            SequenceOutput(
                self._requests[stream], 0, [self._word], finish=finish, cached_tokens=cached
            )
            for stream in self._groups[group]
        ]
        self._board.times[turn] = time.monotonic()
        self._send(Outputs(outputs))

    def _listen(self) -> None:
        now = time.monotonic()
        for event in self._server.poll(now):
            match event:
                case Opened(session, Hello()):
                    self._session = session
                    self._server.send(session, self._welcome(), self._frames)
                    self._status_due = 0.0
                case Received(_, Submit() as submit):
                    self._requests[submit.sampling.seed] = submit.request
                    self._send(Accepted(submit.request))
                    self._board.submitted = len(self._requests)
                    if self._flags.at_once:
                        self._answer(submit.request)
        if self._session and now >= self._status_due:
            self._status_due = now + TransportSettings().beat_interval
            self._send(msgspec.structs.replace(STATUS, running=len(self._requests)))

    def _answer(self, request: int) -> None:
        token = SequenceOutput(request, 0, [self._word], finish="length", cached_tokens=0)
        self._send(Outputs([token]))

    def _send(self, message: ToFrontend) -> None:
        self._server.send(self._session, message)

    def _welcome(self) -> Welcome:
        limits = Limits(
            max_model_len=1_000_000,
            vocab_size=self._facts.config.vocab_size,
            max_waiting_requests=100_000,
            max_num_seqs=256,
        )
        return msgspec.structs.replace(
            WELCOME,
            boot=BOOT.hex(),
            model="null",
            digest="null",
            limits=limits,
            generation=self._facts.generation,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("endpoint")
    add("board", type=Path)
    add("--streams", type=int, required=True)
    add("--tokens", type=int, required=True)
    add(
        "--rate",
        type=float,
        default=0.0,
        help="tokens a second of all streams together; 0: as fast as they are read",
    )
    add("--window", type=int, default=2, help="without a rate: tokens of each stream on their way")
    add("--group", type=int, default=256, help="streams in one step, at most")
    add("--at-once", action="store_true", help="answer each request when it comes, by a token")
    flags = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    NullEngine(flags, Board(flags.board)).run()


if __name__ == "__main__":
    main()
