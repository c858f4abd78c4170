"""CurveZMQ keys on disk: a folder for each role, in pyzmq's files.

engine/   engine.key_secret   frontends/*.key   workers/*.key    who may dial, by public key
gateway/  gateway.key_secret  engine.key                         its own, and whom to expect
worker/   worker.key_secret   engine.key
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import zmq
import zmq.auth

from penstock.errors import StartupError


def load_public(file: Path) -> bytes:
    """The public key, Z85. Raises StartupError."""
    return _load(file)[0]


def load_secret(file: Path) -> tuple[bytes, bytes]:
    """(public, secret), Z85. Raises StartupError, also for a file that everybody may read."""
    public, secret = _load(file)
    if secret is None:
        raise StartupError(f"{file} holds no secret key")
    if file.stat().st_mode & stat.S_IROTH:
        raise StartupError(f"everybody on this machine may read {file}: chmod o-r")
    return public, secret


def _load(file: Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(file)
    except (OSError, ValueError) as error:
        raise StartupError(f"{file} can't be read as a CurveZMQ key: {error}") from None
    for key in (public, secret):
        if key is not None and len(key) != 40:
            raise StartupError(f"a key in {file} has {len(key)} characters; a Z85 key has 40")
    return public, secret


def make_folders(base: Path, frontends: Sequence[str], workers: Sequence[str]) -> list[Path]:
    """Makes the engine's folder, and one for each front end and worker, where they are missing;
    what is there is kept.  Returns the files made.

    A key made again takes the place of the old one in the list of those who may dial.  Raises
    StartupError where that can't be done, or a front end and a worker have the same name.
    """
    if shared := set(frontends) & set(workers):
        raise StartupError(f"{shared.pop()} is the name of a front end and of a worker")
    made: list[Path] = []
    engine = base / "engine"
    try:
        public = _make_key(engine, "engine", made)
        for peers, names in (("frontends", frontends), ("workers", workers)):
            (engine / peers).mkdir(mode=0o700, exist_ok=True)
            for name in names:
                own = _make_key(base / name, name, made)
                _copy_public(own, engine / peers / f"{name}.key", made)
                _copy_public(public, base / name / "engine.key", made)
    except OSError as error:
        raise StartupError(f"no keys can be made in {base}: {error}") from None
    return made


def _make_key(folder: Path, name: str, made: list[Path]) -> bytes:
    """The public key of the pair in the folder, which is made if there is none."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = folder / f"{name}.key_secret"
    if not secret.exists():
        umask = os.umask(0o077)
        try:
            # The secret one gets its name last: half a pair is made again.
            parts = folder / ".making"
            parts.mkdir(exist_ok=True)
            zmq.auth.create_certificates(parts, name)
            (parts / f"{name}.key").unlink()
            (parts / secret.name).rename(secret)
            parts.rmdir()
        finally:
            os.umask(umask)
        made.append(secret)
    return load_secret(secret)[0]


def _copy_public(key: bytes, file: Path, made: list[Path]) -> None:
    if file.exists() and load_public(file) == key:
        return
    new = file.with_suffix(".new")
    new.write_text(f'curve\n    public-key = "{key.decode()}"\n', encoding="ascii")
    new.rename(file)
    made.append(file)
