"""What must not be written: a cache salt is a secret, and a session's name may be a person's.

They are replaced before the core sees them, not when they are written.  So its state, the keys of
its prefix index included, never holds the originals, and a replay decides alike; equal ones stay
equal, different ones different, which is all that the core wants of them.  A tenant's name stays:
it is a digest of an API key already, and settings name tenants by it.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import msgspec

from penstock.protocol.from_frontend import ExpectPrompt, MediaChunk, Submit

FIELDS = tuple(name for name in Submit.__struct_fields__ if "salt" in name)
"""Fields of Submit that are replaced where they are not empty; ExpectPrompt has them, too."""


def without_media(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """An event's arguments as they are written: no recording holds what a picture shows. No
    decision depends on it, nor on how many bytes there are beside what the MediaChunk says."""
    if not any(isinstance(argument, MediaChunk) for argument in arguments):
        return arguments
    session, message, _, now = arguments
    return session, message, b"", now


class Redaction:
    """Replaces text by a digest under a key that is drawn here, and is never written."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def apply(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """An event's arguments, with any Submit or ExpectPrompt among them redacted."""
        if any(isinstance(argument, Submit | ExpectPrompt) for argument in arguments):
            return tuple(map(self._redacted, arguments))
        return arguments

    def _redacted(self, argument: Any) -> Any:
        if isinstance(argument, Submit):
            return self._submit(argument)
        if isinstance(argument, ExpectPrompt):
            return msgspec.structs.replace(argument, **self._without_salts(argument))
        return argument

    def _without_salts(self, message: Submit | ExpectPrompt) -> dict[str, Any]:
        secret = {name: getattr(message, name) for name in FIELDS}
        return {name: self.digest(value) for name, value in secret.items() if value}

    def _submit(self, submit: Submit) -> Submit:
        changed = self._without_salts(submit)
        if submit.session is not None:
            told = self.digest(submit.session.id)
            changed["session"] = msgspec.structs.replace(submit.session, id=told)
        return msgspec.structs.replace(submit, **changed) if changed else submit

    def digest(self, value: str | bytes) -> str | bytes:
        """A keyed digest of the value's own type: 32 hexadecimal digits, or 16 bytes."""
        data = value.encode() if isinstance(value, str) else value
        keyed = hashlib.blake2b(data, digest_size=16, key=self._key)
        return keyed.hexdigest() if isinstance(value, str) else keyed.digest()
