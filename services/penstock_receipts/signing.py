"""The Ed25519 key that signs receipts (RFC 8032), and whether a signature fits."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidRequest, StartupError
from penstock.process import logs
from penstock.request.receipt import PublicKey, Receipt, TreePlace

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

log = logs.get(__name__)

MAX_KEY_FILE_BYTES = 16_384


def _ed25519() -> Any:
    """The library's module. Raises StartupError where it isn't installed."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise StartupError(
            f"receipts need the package {error.name}: pip install 'penstock-llm[encryption]'"
        ) from error
    return ed25519


class SigningKey:
    """A server's private key."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = public_key(private.public_key().public_bytes_raw())

    @classmethod
    def kept(cls, file: Path) -> SigningKey:
        """The key of a PEM file (PKCS #8, not encrypted); where there is no file, a new key and a
        file of it, which its owner alone may read. Raises StartupError."""
        ed25519 = _ed25519()
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization

        try:
            if not file.exists():
                made = ed25519.Ed25519PrivateKey.generate().private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
                _make(file, made)
            with file.open("rb") as opened:
                _warn_of_others(file, os.fstat(opened.fileno()).st_mode)
                pem = opened.read(MAX_KEY_FILE_BYTES)
        except OSError as error:
            raise StartupError(f"receipt_key_file {file}: {error.strerror}") from None
        try:
            private = serialization.load_pem_private_key(pem, None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise StartupError(f"receipt_key_file {file} holds no key: {error}") from None
        if not isinstance(private, ed25519.Ed25519PrivateKey):
            raise StartupError(f"receipt_key_file {file} holds another key than one of Ed25519")
        return cls(private)

    def sign(self, statement: str) -> str:
        """The signature, in base64."""
        return base64.b64encode(self._private.sign(statement.encode())).decode()


def _warn_of_others(file: Path, mode: int) -> None:
    """Warns of a key file that others can access: its readers can sign in the server's name, its
    writers can replace the key."""
    others = stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO)
    if others:
        writes = others & (stat.S_IWGRP | stat.S_IWOTH)
        log.warning(
            f"the key of receipts is {'writable' if writes else 'readable'} by others: run chmod "
            "600 on it, and make a new one if anybody may have read it",
            file=str(file),
        )


def _make(file: Path, content: bytes) -> None:
    making = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as written:
            written.write(content)
        # Whole or not at all; of two that make it at once, one stays.
        with contextlib.suppress(FileExistsError):
            os.link(making, file)
    finally:
        making.unlink(missing_ok=True)


def public_key(raw: bytes) -> PublicKey:
    """The key of these 32 bytes."""
    return PublicKey(
        id=hashlib.sha256(raw).hexdigest()[:16], public_key=base64.b64encode(raw).decode()
    )


def signature_fits(receipt: Receipt | TreePlace) -> bool:
    """Whether the receipt's own key has signed its statement, or that of its batch. Whose key that
    is, is another question. Raises InvalidRequest for what is no key, and StartupError without the
    library."""
    ed25519 = _ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        raw = base64.b64decode(receipt.key.public_key, validate=True)
        public = ed25519.Ed25519PublicKey.from_public_bytes(raw)
    except ValueError:
        raise InvalidRequest("the receipt's public_key is no key of Ed25519 in base64") from None
    if public_key(raw).id != receipt.key.id:
        raise InvalidRequest(
            f"the receipt's key has the id {public_key(raw).id}, not the one it says"
        )
    try:
        signature = base64.b64decode(receipt.signature, validate=True)
        public.verify(signature, receipt.statement.encode())
    except (ValueError, InvalidSignature):
        return False
    return True
