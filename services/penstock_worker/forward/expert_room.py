"""How many layers' routed experts a card has room for (`--cpu-experts auto`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from penstock.model.kv_layout import KVGroup
from penstock.protocol.to_worker import Setup
from penstock_kernels.triton.linear.gguf_weights import empty
from penstock_worker.device.memory import DeviceMemory
from penstock_worker.layers.streamed_experts import experts_together
from penstock_worker.machine.memory import longest_blocks, mib
from penstock_worker.weights.repacking import LAYOUTS
from penstock_worker.weights.stored import StoredTensor

KV_SHARE = 0.2
"""The KV cache's share of what the card may use, or as much as the longest sequence takes."""
STEP_SHARE = 0.05
"""What steps take, as a share of what the card may use. The worker measures them once it has
loaded, and what they leave is the cache's as well."""

UNPACKED_BYTES = 4
"""Of a weight that is copied to the card, while its level becomes a byte, with its scales."""


@dataclass(frozen=True)
class CardRoom:
    """What a card's memory is for, bytes, before it holds anything of the model."""

    usable: int
    kv: int
    """For the KV cache, at least."""
    steps: int
    rest: int
    """Tensors that aren't routed experts' matrices."""
    copies: int = 0
    """For experts that are copied to the card for the rows of a step."""

    @property
    def experts(self) -> int:
        """What is left for routed experts."""
        return max(0, self.usable - self.kv - self.steps - self.rest - self.copies)

    def __str__(self) -> str:
        parts = {"KV cache": self.kv, "steps": self.steps, "other weights": self.rest}
        parts["copies of experts"] = self.copies
        named = ", ".join(f"{name} {mib(size)}" for name, size in parts.items())
        return f"{mib(self.usable)}: {named}, routed experts {mib(self.experts)}"


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


def layers_on_host(sizes: Sequence[int], room: int) -> int:
    """Returns of how many layers, from the first one on, the experts must lie in the host's memory
    for those of the others to fit the room. `sizes`: bytes of each layer's experts."""
    for count in range(len(sizes), 0, -1):
        room -= sizes[count - 1]
        if room < 0:
            return count
    return 0


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
        found.append(experts_together(nbytes, count) * (2 * nbytes + UNPACKED_BYTES * weights))
    return max(found, default=0)


def _on_card(tensor: StoredTensor) -> int:
    layout = LAYOUTS.get(tensor.format)
    if layout is None or len(tensor.shape) != 2:
        return int(tensor.content.nbytes)
    return empty(layout, *tensor.shape, torch.device("meta")).nbytes
