"""Opens what keeps a model's KV elsewhere, or says why nothing can."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import penstock
from penstock.config.settings import TransportSettings
from penstock.errors import StartupError
from penstock.model.kv_layout import KVGroup
from penstock.protocol.to_worker import Setup
from penstock_worker.parallel.place import RankPlace
from penstock_worker.stores.cache import StoredCache
from penstock_worker.stores.contents import CHECKSUM_BYTES, Asking, Contents, WritePace, checksum
from penstock_worker.stores.disk import SegmentFolder
from penstock_worker.stores.interface import KVStore, StoredLayout
from penstock_worker.stores.peers.counts import TransferCounts
from penstock_worker.stores.peers.opening import open_transfer
from penstock_worker.stores.plugged import open_plugged
from penstock_worker.stores.tier import StoreTier
from penstock_worker.stores.writer import GATHER_SECONDS

MEMORY_BYTES_PER_SECOND = 2**36
"""Most bytes that are written per second to a store that doesn't wear out or fill up."""


SETTINGS = ("disk_kv_dir", "kv_store", "kv_endpoint", "kv_peers")
"""The settings any of which asks for a tier."""


def wants_store(setup: Setup) -> bool:
    """Returns whether KV is to be kept anywhere."""
    return any(getattr(setup, name) for name in SETTINGS)


def refuse_store(setup: Setup, why: str) -> None:
    """Raises StartupError if KV is to be kept anywhere."""
    for name in SETTINGS:
        if getattr(setup, name):
            raise StartupError(f"{name} is set: {why}")


def open_store(
    setup: Setup,
    cache: StoredCache,
    fingerprint: str,
    groups: tuple[KVGroup, ...],
    *,
    place: RankPlace,
    transport: TransportSettings,
) -> StoreTier | None:
    """The tier that the setup asks for, for blocks of `cache`; None: it asks for none.

    `fingerprint`: of all that their contents depend on in addition to their keys; `place`: of this
    rank, which keeps its own part of each block; `transport`: how other workers are reached. Raises
    StartupError."""
    layout = _layout_of(setup, cache, fingerprint, place.rank, groups)
    stores: list[KVStore] = []
    pace, asking = WritePace(), Asking()
    with ExitStack() as failed:
        failed.callback(_close, stores)
        stores += _stores(setup, layout, pace)
        written = setup.disk_kv_write_bytes // place.ranks if stores else MEMORY_BYTES_PER_SECOND
        seal, transfers = DigestSeal(), TransferCounts()
        sealed = seal.over(layout)
        for transfer in open_transfer(setup, sealed, place, transport, transfers, asking):
            stores.append(SealedStore(transfer, seal))
        if not stores:
            return None
        store = stores[0] if len(stores) == 1 else StoresInOrder(stores)
        # A step of a prompt that another engine core waits for comes as a whole.
        shared = setup.kv_transfer_bytes // place.ranks // 2 if setup.kv_endpoint else 0
        gather = 0.0 if setup.kv_endpoint else GATHER_SECONDS  # Others may wait for it.
        tier = StoreTier(store, cache, max(1, written), shared, transfers, pace, gather, asking)
        failed.pop_all()
    return tier


def _close(stores: list[KVStore]) -> None:
    for store in stores:
        store.close()


def _stores(setup: Setup, layout: StoredLayout, pace: WritePace) -> Iterator[KVStore]:
    """The fastest first."""
    encryption = _encryption(setup, layout)
    if setup.disk_kv_dir:
        yield _on_disk(setup, layout, encryption, pace)
    if setup.kv_store:
        seal = encryption or DigestSeal()
        below = open_plugged(setup.kv_store, setup.kv_store_address, seal.over(layout))
        yield SealedStore(below, seal)


def _on_disk(
    setup: Setup, layout: StoredLayout, seal: EncryptingSeal | None, pace: WritePace
) -> KVStore:
    """Segments have checksums of their own."""
    root = Path(setup.disk_kv_dir).expanduser().absolute()
    if seal is None:
        return SegmentFolder(root, layout, setup.disk_kv_bytes, pace)
    return SealedStore(SegmentFolder(root, seal.over(layout), setup.disk_kv_bytes, pace), seal)


def _encryption(setup: Setup, layout: StoredLayout) -> EncryptingSeal | None:
    if not setup.disk_kv_key_file:
        return None
    return EncryptingSeal(read_secret(Path(setup.disk_kv_key_file).expanduser()), layout)


def _layout_of(
    setup: Setup,
    cache: StoredCache,
    fingerprint: str,
    rank: int,
    groups: tuple[KVGroup, ...],
) -> StoredLayout:
    sizes = (rank, setup.block_size, *cache.widths)
    # Which layers a block holds depends on how far each may see, and so on max_model_len.
    parts = (fingerprint, penstock.__version__, *map(str, sizes), *map(repr, groups))
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return StoredLayout(name, sum(cache.widths))


# Of contents that only holders of the key file can read or make.
NONCE_BYTES = 12
TAG_BYTES = 16
KEY_BYTES = 32

MAX_FILE_BYTES = 1024


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


# Contents on their way to a store and back: with a checksum, or encrypted.


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


class SealedStore:
    """A KVStore in front of another one, whose payloads are longer by what the seal adds."""

    def __init__(self, store: KVStore, seal: Seal) -> None:
        self._store, self._seal = store, seal
        self._num_broken = 0

    @property
    def payload_bytes(self) -> int:
        return self._store.payload_bytes - self._seal.extra_bytes

    @property
    def num_damaged(self) -> int:
        return self._num_broken + self._store.num_damaged

    def has(self, key: bytes) -> bool:
        return self._store.has(self._seal.name(key))

    def leading(self, keys: Sequence[bytes]) -> int:
        return self._store.leading([self._seal.name(key) for key in keys])

    def read(self, key: bytes) -> bytes | None:
        stored = self._store.read(self._seal.name(key))
        if stored is None:
            return None
        payload = self._seal.open(key, stored)
        self._num_broken += payload is None
        return payload

    def write(self, key: bytes, payload: Contents) -> bool:
        return self._store.write(self._seal.name(key), self._seal.close(key, payload))

    def close(self) -> None:
        self._store.close()


MAX_TURNS = 16
"""How often, in one look-up, a store goes on where another one has nothing more, at most."""


class StoresInOrder:
    """A KVStore made of others, the fastest first. Each keeps everything; a block is read from the
    first one that has it."""

    def __init__(self, stores: Sequence[KVStore]) -> None:
        """stores: at least one, all for the same layout."""
        self._stores = tuple(stores)

    @property
    def payload_bytes(self) -> int:
        return self._stores[0].payload_bytes

    @property
    def num_damaged(self) -> int:
        return sum(store.num_damaged for store in self._stores)

    def has(self, key: bytes) -> bool:
        """Whether none needs it any more."""
        return all(store.has(key) for store in self._stores)

    def leading(self, keys: Sequence[bytes]) -> int:
        found = 0
        for _ in range(MAX_TURNS):
            more = self._next(keys[found:])
            found += more
            if not more or found == len(keys):
                break
        return found

    def read(self, key: bytes) -> bytes | None:
        for store in self._stores:
            payload = store.read(key)
            if payload is not None:
                return payload
        return None

    def write(self, key: bytes, payload: Contents) -> bool:
        """Whether any keeps it."""
        kept = [store.has(key) or store.write(key, payload) for store in self._stores]
        return any(kept)

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def _next(self, keys: Sequence[bytes]) -> int:
        """How many the first store has that has any."""
        return next(filter(None, (store.leading(keys) for store in self._stores)), 0)
