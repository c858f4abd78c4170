"""Opens what keeps a model's KV elsewhere, or says why nothing can."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import penstock
from penstock.config.settings import TransportSettings
from penstock.errors import StartupError
from penstock.model.kv_layout import KVGroup
from penstock.protocol.to_worker import Setup
from penstock_worker.parallel.place import RankPlace
from penstock_worker.stores.cache import StoredCache
from penstock_worker.stores.contents import Asking, WritePace
from penstock_worker.stores.disk import SegmentFolder
from penstock_worker.stores.interface import KVStore, StoredLayout
from penstock_worker.stores.peers.counts import TransferCounts
from penstock_worker.stores.peers.opening import open_transfer
from penstock_worker.stores.plugged import open_plugged
from penstock_worker.stores.sealed_store import SealedStore
from penstock_worker.stores.seals import DigestSeal, EncryptingSeal, read_secret
from penstock_worker.stores.stores_in_order import StoresInOrder
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
