"""What a block's contents become on their way to a store, and back: with a checksum, or encrypted,
so that only holders of a key file can read or make them."""

from __future__ import annotations

import hmac
import os
import re
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from penstock.errors import StartupError
from penstock_worker.stores.contents import CHECKSUM_BYTES, Contents, checksum
from penstock_worker.stores.interface import StoredLayout

NONCE_BYTES = 12
TAG_BYTES = 16
KEY_BYTES = 32

MAX_FILE_BYTES = 1024


class Seal(Protocol):
    """Says what is stored in place of a block's contents, and under which name."""

    @property
    def extra_bytes(self) -> int:
        """The bytes by which what is stored is longer than the contents."""

    def over(self, layout: StoredLayout) -> StoredLayout:
        """What the store below is opened for."""

    def name(self, key: bytes) -> bytes:
        """Returns the name under which the store knows the key, 32 bytes."""

    def close(self, key: bytes, payload: Contents) -> bytes:
        """Returns the bytes that are stored for the contents."""

    def open(self, key: bytes, stored: bytes) -> bytes | None:
        """The contents; None if what was stored is damaged, or another key's."""


class DigestSeal:
    """The contents after a checksum of theirs and of their key."""

    extra_bytes = CHECKSUM_BYTES

    def over(self, layout: StoredLayout) -> StoredLayout:
        return replace(layout, payload_bytes=layout.payload_bytes + self.extra_bytes)

    def name(self, key: bytes) -> bytes:
        return key

    def close(self, key: bytes, payload: Contents) -> bytes:
        return b"".join((checksum(key, payload), payload))

    def open(self, key: bytes, stored: bytes) -> bytes | None:
        made, payload = stored[:CHECKSUM_BYTES], stored[CHECKSUM_BYTES:]
        return payload if hmac.compare_digest(made, checksum(key, payload)) else None


class EncryptingSeal:
    """A Seal: AES-256 in Galois/counter mode with a random nonce, bound to the block's key. Names
    are keyed hashes, since a block's own key can be computed by who guesses its tokens.

    Each layout has keys of its own, so that one encrypts far fewer than 2^32 blocks, the most that
    random nonces are good for (NIST SP 800-38D, 8.3).
    """

    extra_bytes = NONCE_BYTES + TAG_BYTES

    def __init__(self, secret: bytes, layout: StoredLayout) -> None:
        """Raises StartupError where there is no package that encrypts."""
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise StartupError(
                f"disk_kv_key_file needs the package {error.name}: pip install "
                "'penstock-llm[encryption]'"
            ) from error
        self._layout = layout.name.encode()
        self._invalid = InvalidTag
        self._cipher = AESGCM(self._derived(secret, b"contents"))
        self._names = self._derived(secret, b"names")
        self._folder = self._derived(secret, b"layout")

    def over(self, layout: StoredLayout) -> StoredLayout:
        """What the store below is opened for: another key's blocks are another layout's."""
        length = layout.payload_bytes + self.extra_bytes
        return replace(layout, name=self._folder.hex(), payload_bytes=length)

    def name(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=32, key=self._names).digest()

    def close(self, key: bytes, payload: Contents) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, payload, key)

    def open(self, key: bytes, stored: bytes) -> bytes | None:
        try:
            return self._cipher.decrypt(stored[:NONCE_BYTES], stored[NONCE_BYTES:], key)
        except (self._invalid, ValueError):
            return None

    def _derived(self, secret: bytes, purpose: bytes) -> bytes:
        return blake2b(
            self._layout, digest_size=KEY_BYTES, key=secret, person=b"pst kv " + purpose
        ).digest()


def read_secret(path: Path) -> bytes:
    """The key in a file of 64 hexadecimal digits. Raises StartupError."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES).strip()
    except OSError as error:
        raise StartupError(f"disk_kv_key_file {path} can't be read: {error.strerror}") from error
    if re.fullmatch(rb"[0-9a-fA-F]{64}", text) is None:
        raise StartupError(
            f"disk_kv_key_file {path} has to hold 64 hexadecimal digits, as `openssl rand -hex 32` "
            "writes them"
        )
    return bytes.fromhex(text.decode())
