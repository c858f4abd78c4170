"""Opens the tier on disk for a model, or says why there can't be one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import penstock
from penstock.errors import StartupError
from penstock.kv_layout import ONE_GROUP, KVGroup
from penstock.protocol.to_worker import Setup
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.disk.folder import SegmentFolder
from penstock_worker.disk.tier import NO_DISK, DiskTier, StepDisk


def refuse_disk(setup: Setup, why: str) -> None:
    """Raises StartupError if there is to be a tier on disk."""
    if setup.disk_kv_dir:
        raise StartupError(f"disk_kv_dir is set: {why}")


def open_disk(
    setup: Setup,
    copies: BlockCopies,
    fingerprint: str,
    groups: tuple[KVGroup, ...],
    *,
    ranks: int,
    drafts: bool,
) -> StepDisk:
    """The tier that the setup asks for, for blocks of `copies`. `fingerprint` is the worker's;
    `drafts`: whether a draft model shares the blocks. Raises StartupError."""
    if not setup.disk_kv_dir:
        return NO_DISK
    if ranks > 1:
        refuse_disk(setup, f"it serves models on one rank, and this one has {ranks}")
    if groups != ONE_GROUP:
        refuse_disk(setup, "it serves models whose layers all see everything before a token")
    if drafts:
        refuse_disk(setup, "it doesn't keep what a draft model computes; draft by n-grams, or not")
    named = (fingerprint, penstock.__version__, str(setup.block_size), *map(str, copies.widths))
    name = hashlib.sha256("\0".join(named).encode()).hexdigest()
    root = Path(setup.disk_kv_dir).expanduser().absolute()
    folder = SegmentFolder(root, name, sum(copies.widths), setup.disk_kv_bytes)
    return DiskTier(folder, copies, setup.disk_kv_write_bytes)
