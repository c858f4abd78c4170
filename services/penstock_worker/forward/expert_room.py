"""How many layers' routed experts a card has room for (`--cpu-experts auto`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from penstock.model.expert_room import KV_SHARE, STEP_SHARE, CardRoom, copies_of_experts
from penstock.model.kv_layout import KVGroup
from penstock.protocol.to_worker import Setup
from penstock_kernels.triton.linear.gguf_weights import empty
from penstock_worker.device.memory import DeviceMemory
from penstock_worker.machine.memory import longest_blocks
from penstock_worker.weights.repacking import LAYOUTS
from penstock_worker.weights.stored import StoredTensor


def card_room(
    setup: Setup,
    memory: DeviceMemory,
    share: float,
    rest: int,
    block_bytes: int,
    groups: Sequence[KVGroup],
) -> CardRoom:
    """Returns what there is room for. `share`: of the card's memory that may be used."""
    usable = max(0, memory.free() - round((1 - share) * memory.total()))
    blocks = setup.num_kv_blocks
    if blocks is None:
        blocks = longest_blocks(setup, groups)
    kv = blocks * block_bytes
    if setup.num_kv_blocks is None:
        kv = max(kv, round(KV_SHARE * usable))
    return CardRoom(usable, kv, round(STEP_SHARE * usable), rest)


def sizes_on_card(
    tensors: Mapping[str, StoredTensor], layers: Sequence[str]
) -> tuple[list[int], int]:
    """Returns the bytes of each layer's experts as the card holds them, and of all other tensors.

    `layers`: the beginnings of the names of the layers' experts.
    """
    sizes, rest = dict.fromkeys(layers, 0), 0
    for name, tensor in tensors.items():
        layer = next((each for each in layers if name.startswith(each)), None)
        if layer is None:
            rest += tensor.content.nbytes
        else:
            sizes[layer] += _on_card(tensor)
    return list(sizes.values()), rest


def copies_on_card(tensors: Mapping[str, StoredTensor], layers: Mapping[str, int]) -> int:
    """Returns the bytes that copies of experts take on the card: two buffers, and what the experts
    of one become there.

    `layers`: how many experts a layer has, by the beginning of their tensors' names.
    """
    found = []
    for layer, count in layers.items():
        own = [each for name, each in tensors.items() if name.startswith(layer)]
        nbytes = sum(each.content.nbytes for each in own) // count
        weights = sum(math.prod(each.shape) for each in own) // count
        found.append(copies_of_experts(nbytes, weights, count))
    return max(found, default=0)


def _on_card(tensor: StoredTensor) -> int:
    layout = LAYOUTS.get(tensor.format)
    if layout is None or len(tensor.shape) != 2:
        return int(tensor.content.nbytes)
    return empty(layout, *tensor.shape, torch.device("meta")).nbytes
