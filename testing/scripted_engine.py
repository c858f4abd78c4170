"""An engine core for tests of front ends: real sessions, scripted answers."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from penstock.config.settings import TransportSettings
from penstock.model.prepared_model import GenerationDefaults
from penstock.protocol.from_frontend import (
    Abort,
    Advance,
    ExpectPrompt,
    Finish,
    ForgetPrompt,
    FromFrontend,
    Hello,
    MediaChunk,
    MediaFile,
    MediaLost,
    Submit,
)
from penstock.protocol.to_frontend import (
    Accepted,
    Limits,
    Outputs,
    Rejected,
    SequenceOutput,
    Status,
    Welcome,
    text_of,
)
from penstock.transport.events import Ended, Opened, Received
from penstock.transport.session_server import SessionServer

FAST = TransportSettings(beat_interval=0.1, peer_timeout=30.0, progress_timeout=600.0)
"""Quick, and no pause of a busy machine passes for a silence; most tests' engines tell their state
once."""


LIMITS = Limits(
    max_model_len=100,
    vocab_size=256,
    max_waiting_requests=8,
    max_num_seqs=4,
    max_grammar_bytes=65_536,
)
WELCOME = Welcome(
    version=1,
    boot="",
    model="bytes",
    digest="",
    created=0,
    limits=LIMITS,
    generation=GenerationDefaults(eos_token_ids=(0,)),
    add_bos=False,
    seed=None,
)
STATUS = Status(
    ready=True, reason="", fingerprint="f", waiting=0, running=0, blocks_total=8, blocks_free=8,
    block_size=16, steps=0, preemptions=0, frontends=1, workers=1,
)  # fmt: skip


def byte_tokenizer_json() -> bytes:
    """A byte-level tokenizer in which token id b is byte b."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    by_byte = {_byte_of(letter): letter for letter in letters}
    tokenizer = Tokenizer(models.BPE(vocab={by_byte[b]: b for b in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str().encode()


def _byte_of(letter: str) -> int:
    """GPT-2's table: printable bytes stand for themselves, the others follow from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    code = ord(letter)
    return code if code in printable else others[code - 256]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class ScriptedEngine:
    """Accepts everything, records it, and sends what the test tells it to.

    refusing: answers Submits with Rejected of that code.  telling: sends its status again and
    again, as a real one does; changes: to that status.  limits: other than the usual ones.
    script: is given each Submit, accepted or not, and each Advance.  silent_on: names of requests
    that it doesn't answer.  prefills_from, expects: see Welcome.  names_text: it says what its
    tokenizer is, and doesn't send what a front end has, as older ones did.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        boot: bytes = b"boot-one",
        digest: str = "d1",
        telling: bool = False,
        created: int = 0,
        limits: dict[str, Any] | None = None,
        prefills_from: int = 0,
        expects: bool = False,
        template: str = "",
        names_text: bool = False,
        **changes: Any,
    ) -> None:
        self.context = zmq.Context()
        self.server: SessionServer[FromFrontend] = SessionServer(
            self.context, endpoint, msgspec.msgpack.Decoder(FromFrontend), FAST, boot
        )
        self.boot, self.digest, self.template = boot, digest, template
        self.names_text = names_text
        self.hellos: list[Hello] = []
        self.sent_text = 0
        """Times that it sent its tokenizer."""
        self.session = b""
        self.submits: list[Submit] = []
        self.finishes: list[Finish] = []
        self.aborts: list[Abort] = []
        self.advances: list[Advance] = []
        self.media: list[tuple[MediaFile | MediaChunk | MediaLost, list[bytes]]] = []
        """Answers to NeedMedia, with their frames."""
        self.script: Callable[[Submit | Advance], None] | None = None
        self.limits = limits or {}
        self.prefills_from, self.expects = prefills_from, expects
        self.expected: list[ExpectPrompt | ForgetPrompt] = []
        self.silent_on: set[str] = set()
        self.ended: list[str] = []
        self.accepting = True
        self.refusing: Any = None
        self.telling, self.created, self.changes = telling, created, changes
        self._told_at = 0.0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            for event in self.server.poll(time.monotonic()):
                self._take(event)
            if self.telling and self.session and time.monotonic() - self._told_at > 0.1:
                self.tell()
            await asyncio.sleep(0.002)

    def _take(self, event: Any) -> None:
        match event:
            case Opened(session, Hello() as hello):
                self.session = session
                self.hellos.append(hello)
                welcome, text = self.welcome(), [byte_tokenizer_json(), self.template.encode()]
                has_it = hello.text is not None and hello.text == text_of(welcome)
                self.sent_text += not has_it
                self.send(welcome, [] if has_it else text)
                self.send(self.status())
            case Received(_, Submit() as submit):
                self.submits.append(submit)
                if self.refusing is not None:
                    self.send(Rejected(submit.request, self.refusing, "for the test", 2000))
                elif self.accepting and submit.name not in self.silent_on:
                    self.send(Accepted(submit.request))
                self._play(submit)
            case Received(_, Advance() as advance):
                self.advances.append(advance)
                self._play(advance)
            case Received(_, Finish() as finish):
                self.finishes.append(finish)
            case Received(_, (ExpectPrompt() | ForgetPrompt()) as expected):
                self.expected.append(expected)
            case Received(_, Abort() as abort):
                self.aborts.append(abort)
            case Received(_, (MediaFile() | MediaChunk() | MediaLost()) as answer, frames):
                self.media.append((answer, frames))
            case Ended(_, reason):
                self.ended.append(reason)

    def _play(self, message: Submit | Advance) -> None:
        if self.script is not None:
            self.script(message)

    def entered(self, *submits: Submit) -> None:
        """Sequences of these requests are in a step."""
        self.send(Outputs([], [submit.request for submit in submits]))

    def lose_session(self) -> None:
        """Ends it, and lives on."""
        self.server.end(self.session, "for the test")
        self.session = b""

    def tell(self, **changes: Any) -> None:
        """Sends the status, changed for good."""
        self.changes.update(changes)
        self._told_at = time.monotonic()
        self.send(self.status())

    def send(self, message: Any, frames: list[bytes] | None = None) -> None:
        if self.session:
            self.server.send(self.session, message, frames or [])

    def text(self, submit: Submit, text: str, *, sequence: int = 0, finish: Any = None) -> None:
        """One output whose tokens are the text's bytes."""
        output = SequenceOutput(submit.request, sequence, list(text.encode()), finish=finish)
        self.send(Outputs([output]))

    def welcome(self) -> Welcome:
        return msgspec.structs.replace(
            WELCOME,
            boot=self.boot.hex(),
            digest=self.digest,
            created=self.created,
            limits=msgspec.structs.replace(LIMITS, **self.limits),
            prefills_from=self.prefills_from,
            expects=self.expects,
            tokenizer_sha256=_sha256(byte_tokenizer_json()) if self.names_text else "",
            template_sha256=_sha256(self.template.encode()) if self.names_text else "",
        )

    def status(self, **changes: Any) -> Status:
        return msgspec.structs.replace(STATUS, **{**changes, **self.changes})

    async def die(self) -> None:
        """Leaves without a word, as if killed."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.server.socket.close(linger=0)
        self.context.term()
