"""An engine core that computes nothing: real sessions, a token a turn for each stream.

    python -m testing.null_engine ENDPOINT BOARD --streams 1000 --tokens 100 ...

It waits until all streams are submitted and the board says go.  A turn is one Outputs message for
`--group` streams at most (the engine core's max_num_seqs); turns go round the groups.  Each token
is the same word of WORD_BYTES bytes, so that a reader can count tokens without parsing.
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
    Status,
    ToFrontend,
    Welcome,
)
from penstock.text.tokenizer import Tokenizer
from penstock.transport.events import Opened, Received
from penstock.transport.session_server import SessionServer
from testing.board import Board

MODEL = "smollm2-135m"
WORD = " then"
WORD_BYTES = len(WORD)
BOOT = b"null-eng"
PACE = 0.0002


class NullEngine:
    """rate: tokens a second of all streams together; 0: as fast as they are read, with `window`
    tokens of each stream on their way at most.  group: streams in one step, at most."""

    def __init__(
        self,
        endpoint: str,
        board: Board,
        *,
        streams: int,
        tokens: int,
        rate: float,
        window: int,
        group: int,
    ) -> None:
        self._window = window
        self._board = board
        self._streams, self._tokens, self._rate = streams, tokens, rate
        self._hub: SessionServer[FromFrontend] = SessionServer(
            zmq.Context(),
            endpoint,
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
        self._groups = [range(a, min(a + group, streams)) for a in range(0, streams, group)]
        self._status_due = 0.0

    def _one_token(self) -> int:
        tokenizer = Tokenizer(self._frames[0], add_bos=False, bos_token_id=None)
        (token,) = tokenizer.encode(WORD)
        return token

    def run(self) -> None:
        """Until the board says that the client has read everything."""
        turn, turns = 0, self._tokens * len(self._groups)
        begun = 0.0
        while not self._board.ended:
            self._listen()
            if turn == turns or not self._board.go:
                time.sleep(PACE)
                continue
            now = time.monotonic()
            begun = begun or now
            due = self._due(turn, begun)
            if now < due:
                time.sleep(min(PACE, due - now))
                continue
            self._give(turn)
            turn += 1

    def _due(self, turn: int, begun: float) -> float:
        round_, group = divmod(turn, len(self._groups))
        if self._rate:
            return begun + (round_ + group / len(self._groups)) * self._streams / self._rate
        unread = round_ * self._streams + self._groups[group].start - self._board.received
        return 0.0 if unread < self._window * self._streams else float("inf")

    def _give(self, turn: int) -> None:
        number, group = divmod(turn, len(self._groups))
        finish = "length" if number == self._tokens - 1 else None
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
        for event in self._hub.poll(now):
            match event:
                case Opened(session, Hello()):
                    self._session = session
                    self._hub.send(session, self._welcome(), self._frames)
                    self._status_due = 0.0
                case Received(_, Submit() as submit):
                    self._requests[submit.sampling.seed] = submit.request
                    self._send(Accepted(submit.request))
                    self._board.submitted = len(self._requests)
        if self._session and now >= self._status_due:
            self._status_due = now + TransportSettings().beat_interval
            self._send(self._status())

    def _send(self, message: ToFrontend) -> None:
        self._hub.send(self._session, message)

    def _welcome(self) -> Welcome:
        return Welcome(
            version=1,
            boot=BOOT.hex(),
            model="null",
            digest="null",
            created=0,
            limits=Limits(
                max_model_len=1_000_000,
                vocab_size=self._facts.config.vocab_size,
                max_waiting_requests=100_000,
                max_num_seqs=256,
            ),
            generation=self._facts.generation,
            add_bos=False,
            seed=None,
        )

    def _status(self) -> Status:
        return Status(
            ready=True, reason="", fingerprint="null", waiting=0, running=len(self._requests),
            blocks_total=1, blocks_free=1, block_size=16, steps=0, preemptions=0, frontends=1,
            workers=1,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("endpoint")
    parser.add_argument("board", type=Path)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--window", type=int, default=2)
    parser.add_argument("--group", type=int, default=256)
    flags = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    NullEngine(
        flags.endpoint,
        Board(flags.board),
        streams=flags.streams,
        tokens=flags.tokens,
        rate=flags.rate,
        window=flags.window,
        group=flags.group,
    ).run()


if __name__ == "__main__":
    main()
