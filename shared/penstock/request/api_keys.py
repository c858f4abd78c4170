"""The file of API keys: who may ask, for which tenant, and how much.

A list, as YAML or JSON; `penstock key` makes a key and prints its entry.  An entry holds the key's
SHA-256 and never the key: a key is 256 random bits, so its digest needs no salt and no slowness.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.errors import StartupError
from penstock.process import logs
from penstock.protocol.common import HIGHEST_PRIORITY, LOWEST_PRIORITY, Grant

log = logs.get(__name__)

ENVIRONMENT = "PENSTOCK_API_KEY"
"""The one key of a server that has no file: in the environment, where other users don't see it."""

PREFIX = "sk-penstock-"
TENANT_DIGITS = 32
"""Hex digits of a key's SHA-256 that name the tenant of a key whose entry names none."""

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_KEY_BYTES = 1024
MAX_PER_MINUTE = 10_000_000_000

_PerMinute = Annotated[int, Meta(ge=1, le=MAX_PER_MINUTE)] | None
_KEY = re.compile(rb"[!-~]{16,}")
_TENANT = re.compile(r"[\w.-]{1,64}", re.ASCII)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry.

    name: for people and logs.  sha256: of the key, 64 hex digits.
    tenant: keys of one tenant share its weight, its bound and its KV cache; default: the key's own.
    weight: of its share under --scheduling-policy fair.  highest_priority: the lowest value that
    its requests may ask for.  max_concurrent: requests that the tenant may have open.
    requests_per_minute, tokens_per_minute: of this key; none: any number.
    models: names that it may use, of the model and of adapters; none: all.  unload_models: may have
    models on demand unloaded.  admin: may read /metrics on the admin port, and control the server.
    metrics: may read /metrics there, and /load, and do nothing else.
    share_identical_requests: whether equal ones of its tenant's that are open at once are computed
    once; none: as the server's setting says.
    """

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")]
    tenant: str | None = None
    weight: Annotated[int, Meta(ge=1, le=1000)] = 1
    highest_priority: Annotated[int, Meta(ge=HIGHEST_PRIORITY, le=LOWEST_PRIORITY)] = (
        HIGHEST_PRIORITY
    )
    max_concurrent: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    requests_per_minute: _PerMinute = None
    tokens_per_minute: _PerMinute = None
    models: tuple[str, ...] | None = None
    admin: bool = False
    metrics: bool = False
    unload_models: bool = False
    share_identical_requests: bool | None = None

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.sha256)

    @property
    def tenant_name(self) -> str:
        """What messages call its tenant."""
        return self.tenant or self.sha256[:TENANT_DIGITS].lower()

    @property
    def grant(self) -> Grant:
        """What the engine core learns about its tenant."""
        return Grant(self.weight, self.max_concurrent, self.highest_priority)

    @property
    def limited(self) -> bool:
        """Whether it has a limit that is counted by the minute."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None


def digest_of(key: bytes) -> bytes:
    """SHA-256 of a key, by which it is looked up."""
    return hashlib.sha256(key).digest()


def new_key() -> str:
    """A random key, 256 bits."""
    return PREFIX + secrets.token_urlsafe(32)


def entry(key: str, **fields: object) -> str:
    """The file's line for a key; what is None is left out."""
    values = {"sha256": digest_of(key.encode()).hex(), **fields}
    known = {name: value for name, value in values.items() if value is not None}
    made = check_keys([msgspec.convert(known, ApiKey)])[0]
    words = {name: getattr(made, name) for name in ("name", *known)}
    # A flow mapping of JSON values is YAML, and one line.
    inside = ", ".join(f"{name}: {msgspec.json.encode(v).decode()}" for name, v in words.items())
    return f"- {{{inside}}}"


def key_of_environment() -> ApiKey | None:
    """The key in PENSTOCK_API_KEY, which may do everything, if there is one."""
    value = os.environ.get(ENVIRONMENT, "")
    if not value:
        return None
    digest = digest_of(value.encode("utf-8", "surrogateescape")).hex()
    return ApiKey(name=ENVIRONMENT, sha256=digest, admin=True)


def keep_key(file: Path) -> str:
    """The key that the file holds; where there is no file, a new key and a file of it, which the
    owner's group may read. Raises StartupError."""
    made = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        if not file.exists():
            descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
            with os.fdopen(descriptor, "w", encoding="ascii") as written:
                written.write(f"{new_key()}\n")
            # Whole or not at all; of two that make it at once, one stays.
            with contextlib.suppress(FileExistsError):
                os.link(made, file)
    except OSError as error:
        raise StartupError(f"{file}: {error.strerror}") from None
    finally:
        made.unlink(missing_ok=True)
    return _read_key(file)


def metrics_key(file: str) -> ApiKey:
    """The key of --metrics-key-file. Raises StartupError."""
    digest = digest_of(_read_key(Path(file)).encode()).hex()
    return ApiKey(name="metrics", sha256=digest, metrics=True)


def _read_key(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            key = opened.read(MAX_KEY_BYTES + 1).strip()
    except OSError as error:
        raise StartupError(f"{file}: {error.strerror}") from None
    if len(key) > MAX_KEY_BYTES or not _KEY.fullmatch(key):
        raise StartupError(
            f"{file} doesn't hold an API key: it must be one word of 16 to {MAX_KEY_BYTES} "
            "printable ASCII characters"
        )
    return key.decode()


def load_keys(file: str) -> list[ApiKey]:
    """The entries of a file. Raises StartupError that names file, entry and field."""
    path = Path(file)
    try:
        about = path.stat()
        if about.st_size > MAX_FILE_BYTES:
            raise StartupError(f"--api-keys {file}: larger than {MAX_FILE_BYTES} bytes")
        raw = path.read_bytes()
    except OSError as error:
        raise StartupError(f"--api-keys {file}: {error.strerror}") from None
    _warn_of_others(file, about.st_mode)
    try:
        found = msgspec.yaml.decode(raw, type=list[ApiKey] | None)
        return check_keys(found or [])
    except msgspec.DecodeError as error:
        raise StartupError(f"--api-keys {file}: {error}") from None
    except ValueError as error:
        raise StartupError(f"--api-keys {file}: {error}") from None


def check_keys(keys: list[ApiKey]) -> list[ApiKey]:
    """Returns `keys`. Raises ValueError for entries that contradict one another."""
    seen: dict[bytes, str] = {}
    grants: dict[str, tuple[Grant, str]] = {}
    for key in keys:
        if key.tenant is not None and not _TENANT.fullmatch(key.tenant):
            raise ValueError(
                f"{key.name}: tenant {key.tenant!r} must be 1 to 64 letters, digits, '_', '.', '-'"
            )
        if key.tenant == "anonymous":
            raise ValueError(
                f"{key.name}: the tenant anonymous is reserved for requests without a key"
            )
        if key.admin and key.metrics:
            raise ValueError(f"{key.name}: an admin's key reads /metrics too, so leave metrics out")
        if key.unload_models and (key.admin or key.metrics):
            more = "an admin's key" if key.admin else "a key with metrics"
            does = "unloads models too" if key.admin else "does nothing else"
            raise ValueError(f"{key.name}: {more} {does}, so leave unload_models out")
        if key.digest in seen:
            raise ValueError(f"{key.name} and {seen[key.digest]} are the same key")
        seen[key.digest] = key.name
        grant, other = grants.setdefault(key.tenant_name, (key.grant, key.name))
        if grant != key.grant:
            raise ValueError(
                f"{key.name} and {other} belong to one tenant, so they must have the same weight, "
                "max_concurrent and highest_priority"
            )
    return keys


def _warn_of_others(file: str, mode: int) -> None:
    others = stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO)
    if others & (stat.S_IWGRP | stat.S_IWOTH):
        log.warning("the file of API keys is writable by others: run chmod 600 on it", file=file)
    elif others:
        log.warning("the file of API keys is readable by others: run chmod 600 on it", file=file)
