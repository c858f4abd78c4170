"""Opens what keeps a model's KV elsewhere, or says why nothing can."""

from __future__ import annotations

import hashlib
from pathlib import Path

import penstock
from penstock.errors import StartupError
from penstock.kv_layout import ONE_GROUP, KVGroup
from penstock.protocol.to_worker import Setup
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.stores.disk.folder import SegmentFolder
from penstock_worker.stores.interface import StoredLayout
from penstock_worker.stores.tier import NO_STORE, StepStore, StoreTier


def refuse_store(setup: Setup, why: str) -> None:
    """Raises StartupError if there is to be a tier on disk."""
    if setup.disk_kv_dir:
        raise StartupError(f"disk_kv_dir is set: {why}")


def open_store(
    setup: Setup,
    copies: BlockCopies,
    fingerprint: str,
    groups: tuple[KVGroup, ...],
    *,
    ranks: int,
    drafts: bool,
) -> StepStore:
    """The tier that the setup asks for, for blocks of `copies`. `fingerprint` is the worker's;
    `drafts`: whether a draft model shares the blocks. Raises StartupError."""
    if not setup.disk_kv_dir:
        return NO_STORE
    if ranks > 1:
        refuse_store(setup, f"it serves models on one rank, and this one has {ranks}")
    if groups != ONE_GROUP:
        refuse_store(setup, "it serves models whose layers all see everything before a token")
    if drafts:
        refuse_store(setup, "it doesn't keep what a draft model computes; draft by n-grams, or not")
    layout = _layout_of(setup, copies, fingerprint)
    root = Path(setup.disk_kv_dir).expanduser().absolute()
    folder = SegmentFolder(root, layout, setup.disk_kv_bytes)
    return StoreTier(folder, copies, setup.disk_kv_write_bytes)


def _layout_of(setup: Setup, copies: BlockCopies, fingerprint: str) -> StoredLayout:
    parts = (fingerprint, penstock.__version__, str(setup.block_size), *map(str, copies.widths))
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return StoredLayout(name, sum(copies.widths))
