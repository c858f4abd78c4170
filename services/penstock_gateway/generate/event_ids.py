"""Ids of a resumable stream's events: what its answer was left to chance, and how far it is.

Ids are not secret, and not signed by a key: a forged one can do no more than a request. A checksum
tells those that were damaged.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from penstock.client.emitted import KnownTokens
from penstock.errors import InvalidRequest
from penstock_gateway.generate.computing import LAST_EVENT_ID

if TYPE_CHECKING:
    from penstock_gateway.generate.reply import ReplyHead

_ORIGIN = struct.Struct(">BIQ16s12s6s6s")
_VERSION = 2
_CHECK_BYTES = 6
_TOKEN = 4 * -(-(_ORIGIN.size + _CHECK_BYTES) // 3)
_ID = re.compile(rf"([A-Za-z0-9_=-]{{{_TOKEN}}})\.(\d{{1,9}}e?(?:-\d{{1,9}}e?)*)(?:~(\d{{1,9}}))?")


class Origin(NamedTuple):
    """What the answer to a request was left to chance, and what it is an answer of.

    created: Unix time, seconds.  name: of the reply's id.  body: digest of body and tenant.  asked:
    digest of what the model was asked.  computed: what `fingerprint_name` has of what it was
    computed with.
    """

    created: int
    seed: int
    name: bytes
    body: bytes
    asked: bytes
    computed: bytes = b""

    @property
    def fingerprint(self) -> str:
        """The name of what it was computed with, as replies have it."""
        return f"fp_{self.computed.hex()}"

    def written(self) -> str:
        """The form that it has in ids of events."""
        packed = _ORIGIN.pack(_VERSION, *self)
        return base64.urlsafe_b64encode(packed + _check(packed)).decode()

    @classmethod
    def read(cls, written: str) -> Origin:
        """Raises InvalidRequest."""
        try:
            whole = base64.b64decode(written, b"-_", validate=True)
        except binascii.Error as error:
            raise wrong_id("no event of this server has it") from error
        if len(whole) != _ORIGIN.size + _CHECK_BYTES:
            raise wrong_id("no event of this server has it")
        packed = whole[: _ORIGIN.size]
        version, *fields = _ORIGIN.unpack(packed)
        if whole[_ORIGIN.size :] != _check(packed) or version != _VERSION:
            raise wrong_id("it was damaged, or another version of the server wrote it")
        return cls(*fields)


class OriginWriter:
    """Writes a stream's origin, once it is known what computes the answer. head: of the reply."""

    def __init__(self, origin: Origin, head: ReplyHead) -> None:
        self._origin = origin
        self._head = head
        self._written = b""

    def written(self) -> bytes:
        """The form that it has in ids of events; empty: not known yet."""
        if not self._written and (name := self._head.system_fingerprint) is not None:
            computed = bytes.fromhex(name.removeprefix("fp_"))
            self._written = self._origin._replace(computed=computed).written().encode()
        return self._written


def read_id(last: str) -> tuple[Origin, tuple[KnownTokens, ...], int]:
    """The origin, what the client has of each choice, and the number of the event after it; 0 where
    events have none. Raises InvalidRequest."""
    found = _ID.fullmatch(last)
    if found is None:
        raise wrong_id("no event of this server has it")
    counts = found[2].split("-")
    known = tuple(KnownTokens(int(each.rstrip("e")), each.endswith("e")) for each in counts)
    return Origin.read(found[1]), known, int(found[3] or 0)


def written_place(known: Iterable[KnownTokens], number: int) -> bytes:
    """How far all choices are, as an id says it after the origin. number: as `read_id` has it."""
    text = "-".join(f"{each.tokens}e" if each.ended else str(each.tokens) for each in known)
    return f"{text}~{number}".encode() if number else text.encode()


def wrong_id(why: str, *, code: str = "invalid_value") -> InvalidRequest:
    """The error of an id that a stream can't go on from."""
    message = f"the stream can't go on from this {LAST_EVENT_ID}: {why}"
    return InvalidRequest(message, param=LAST_EVENT_ID, code=code)


def _check(packed: bytes) -> bytes:
    return hashlib.blake2b(packed, digest_size=_CHECK_BYTES).digest()
