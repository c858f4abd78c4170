"""How many layers' routed experts a card has room for (`--cpu-experts auto`), and what the host has
to have room for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.model.expert_room import KV_SHARE, STEP_SHARE, CardRoom, copies_of_experts
from penstock.model.kv_layout import KVGroup
from penstock.model.prepared_model import PreparedModel
from penstock.model.speculation import LOOKUPS
from penstock.prepare import load_manifest
from penstock.prepare.describe import kv_bytes_per_token
from penstock.protocol.to_worker import Setup
from penstock_kernels.cpu.library import load
from penstock_kernels.cpu.matrix import SOURCES
from penstock_worker.adapters.adaptable import adapter_bytes, whole_bytes
from penstock_worker.adapters.models import AdaptableModel
from penstock_worker.device.memory import DeviceMemory
from penstock_worker.machine.memory import longest_blocks
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.weights.repacking import bytes_on_card
from penstock_worker.weights.stored import StoredTensor


@dataclass(frozen=True)
class Cache:
    """The KV cache of a model on a card."""

    block_bytes: int
    groups: Sequence[KVGroup]


@dataclass(frozen=True)
class ExpertLayerBytes:
    """What a layer's routed experts take."""

    card: int
    """Bytes in the card's kernels' layout."""
    host: int
    """Bytes in the CPU kernels' layout."""


def card_room(
    setup: Setup,
    memory: DeviceMemory,
    share: float,
    rest: int,
    cache: Cache,
    beside: int = 0,
) -> CardRoom:
    """Returns what there is room for. `share`: of the card's memory that may be used. `rest`,
    `beside`: see CardRoom."""
    usable = max(0, memory.free() - round((1 - share) * memory.total()))
    blocks = setup.num_kv_blocks
    if blocks is None:
        blocks = longest_blocks(setup, cache.groups)
    kv = blocks * cache.block_bytes
    if setup.num_kv_blocks is None:
        kv = max(kv, round(KV_SHARE * usable))
    return CardRoom(usable, kv, round(STEP_SHARE * usable), rest, beside=beside)


def beside_bytes(
    setup: Setup,
    prepared: PreparedModel,
    cache: Cache,
    adaptable: AdaptableModel | None,
    media: MediaEncodings | None,
) -> int:
    """Returns what drafts, adapters and media take on the card: what drafts with its KV cache, as
    many adapters as may be loaded, a tower that has a file of its own, and encodings."""
    found = _of_drafts(setup, cache, prepared.decoder.num_layers)
    if adaptable is not None:
        modules, whole = adaptable.modules, adaptable.whole if adaptable.takes_whole else {}
        each = adapter_bytes(modules, setup.max_lora_rank, _NUMBER) + whole_bytes(whole, _NUMBER)
        found += setup.max_loras * each
    if media is not None:
        tower = prepared.weights.mmproj
        found += media.nbytes + (Path(tower).stat().st_size if tower else 0)
    return found


_NUMBER = 2
"""Bytes of a number beside quantised weights: bfloat16."""


def _of_drafts(setup: Setup, cache: Cache, layers: int) -> int:
    """`layers`: of the served model."""
    said = setup.speculation
    if said is None or said.method in LOOKUPS:
        return 0
    blocks = setup.num_kv_blocks
    if blocks is None:
        blocks = longest_blocks(setup, cache.groups)
    if not said.model:  # Layers of the served model's files, each with a cache like its own ones.
        return -(-said.num_speculative_tokens * blocks * cache.block_bytes // layers)
    draft = load_manifest(said.model)
    weights = sum(Path(file).stat().st_size for file in draft.weights.files)
    # A head is no decoder by itself, and has a cache like one.
    per_token = kv_bytes_per_token(draft.config, draft.weights.dtype)
    return weights + blocks * setup.block_size * per_token


def layer_bytes(
    tensors: Mapping[str, StoredTensor], layers: Sequence[str]
) -> tuple[list[ExpertLayerBytes], int]:
    """Returns what each layer's experts take, and the bytes on the card of all other tensors.

    `layers`: the beginnings of the names of the layers' experts.
    """
    card, rest = dict.fromkeys(layers, 0), 0
    host = dict.fromkeys(layers, 0)
    for name, tensor in tensors.items():
        layer = next((each for each in layers if name.startswith(each)), None)
        if layer is None:
            rest += bytes_on_card(tensor)
        else:
            card[layer] += bytes_on_card(tensor)
            host[layer] += _on_host(tensor)
    return [ExpertLayerBytes(card[each], host[each]) for each in layers], rest


def copies_on_card(tensors: Mapping[str, StoredTensor], layers: Mapping[str, int]) -> int:
    """Returns the bytes that copies of experts take on the card: two buffers, and what the experts
    of one become there.

    `layers`: how many experts a layer has, by the beginning of their tensors' names.
    """
    found = []
    for layer, count in layers.items():
        own = [each for name, each in tensors.items() if name.startswith(layer)]
        nbytes = sum(map(_on_host, own)) // count
        weights = sum(math.prod(each.shape) for each in own) // count
        found.append(copies_of_experts(nbytes, weights, count))
    return max(found, default=0)


def _on_host(tensor: StoredTensor) -> int:
    """In tiles of 16 outputs, with float32 biases."""
    if len(tensor.shape) != 2:
        return 4 * -(-math.prod(tensor.shape) // 16) * 16
    source = SOURCES.get(tensor.format)
    if source is None:
        return int(tensor.content.nbytes)
    return int(load().pk_matrix_bytes(source.kind, *tensor.shape))
