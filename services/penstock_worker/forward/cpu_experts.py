"""Which routed experts of a model on a card lie in the host's memory (`--cpu-experts`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from penstock.errors import StartupError
from penstock.model.config import ModelConfig
from penstock.model.expert_places import ExpertPlaces, expert_counts, host_places
from penstock.model.expert_room import experts_together, layers_on_host
from penstock.model.layer_spec import FeedForwardSpec
from penstock.model.prepared_model import PreparedModel
from penstock.process import logs
from penstock.protocol.to_worker import Setup
from penstock_kernels.cpu.routed_experts import use_bits_of_groups
from penstock_kernels.triton.rowwise.cpu_activations import CPU_KINDS
from penstock_worker.device.memory import memory_of
from penstock_worker.dtype import stays_quantised
from penstock_worker.forward.expert_room import (
    Cache,
    ExpertLayerBytes,
    card_room,
    copies_on_card,
    layer_bytes,
)
from penstock_worker.layers.level_experts import ExpertHost
from penstock_worker.machine.memory import free_memory, mib
from penstock_worker.metrics.hand_over import HandOverCounts
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.steps.feature import StepFeature
from penstock_worker.weights.gguf_files import gguf_tensors

if TYPE_CHECKING:
    from penstock_worker.metrics.counts import WorkerCounts

OFF, AUTO = "off", "auto"

log = logs.get(__name__)


class HandOver(StepFeature):
    """What metrics see of experts in the host's memory."""

    name = "experts in the host's memory"

    def __init__(self, counts: HandOverCounts) -> None:
        self._counts = counts

    def show_counts(self, counts: WorkerCounts) -> None:
        counts.hand_over = self._counts


def expert_host(
    setup: Setup,
    config: ModelConfig,
    prepared: PreparedModel,
    threads: int,
    device: torch.device,
    ranks: Ranks,
    cache: Cache,
    beside: Callable[[], int],
) -> ExpertHost | None:
    """Returns what loads the experts of the model's layers; None: `cpu_experts` is off. Has the CPU
    kernels use the instruction set whose bits the card has, in this process. Raises StartupError
    for a model, or other settings, that it doesn't fit.

    `beside`: returns what else the card will hold, see CardRoom.
    """
    if setup.cpu_experts == OFF:
        return None
    words = "all" if setup.cpu_experts == AUTO else setup.cpu_experts
    places = host_places(config, words)
    reason = _obstacle(setup, config, prepared, ranks)
    if reason is not None:
        raise StartupError(f"cpu_experts is {setup.cpu_experts}: {reason}")
    try:
        use_bits_of_groups()
    except ImportError as error:
        raise StartupError(f"cpu_experts is {setup.cpu_experts}: {error}") from error
    found = _Sizes.of(config, prepared)
    on_host = _on_host(places)
    if setup.cpu_experts == AUTO:
        on_host = on_host[: _chosen(setup, found, device, cache, beside())]
    _check_host(setup, found, len(on_host))
    return ExpertHost(device, threads, frozenset(on_host))


@dataclass(frozen=True)
class _Sizes:
    """What is to be divided, bytes."""

    layers: list[ExpertLayerBytes]
    """The experts of each layer that has any."""
    rest: int
    copies: int
    """For experts that are copied to the card."""
    pinned: int
    """The host's memory through which they are copied."""

    @staticmethod
    def of(config: ModelConfig, prepared: PreparedModel) -> _Sizes:
        """Reads the files' headers."""
        tensors = gguf_tensors(prepared.weights.files, config)
        numbered = {f"layers.{n}.mlp.experts.": c for n, c in enumerate(expert_counts(config)) if c}
        layers, rest = layer_bytes(tensors, list(numbered))
        buffers = [
            experts_together(each.host // count, count) * (each.host // count)
            for each, count in zip(layers, numbered.values(), strict=True)
        ]
        pinned = 2 * max(buffers, default=0)
        return _Sizes(layers, rest, copies_on_card(tensors, numbered), pinned)


def _chosen(setup: Setup, found: _Sizes, device: torch.device, cache: Cache, beside: int) -> int:
    """Returns of how many layers, from the first one on, the experts don't fit the card."""
    on_card = device.type == "cuda"
    share = setup.gpu_memory_utilization if on_card else setup.kv_memory_fraction
    room = card_room(setup, memory_of(device), share, found.rest, cache, beside)
    sizes = [each.card for each in found.layers]
    count = layers_on_host(sizes, room.experts)
    if count:
        room = replace(room, copies=found.copies)
        count = layers_on_host(sizes, room.experts)
    log.info(
        "cpu_experts is chosen by the card's memory",
        layers_on_the_host=count,
        layers=len(sizes),
        card=str(room),
    )
    return count


def _check_host(setup: Setup, found: _Sizes, count: int) -> None:
    """Raises StartupError where the host's memory has no room for the experts of so many layers,
    for what they are copied through, and for the host tier of the KV cache."""
    if not count:
        return
    experts, free = sum(each.host for each in found.layers[:count]), free_memory()
    if experts + found.pinned + setup.host_kv_bytes <= free:
        return
    tier = f", the KV cache's host tier {mib(setup.host_kv_bytes)}" if setup.host_kv_bytes else ""
    allowed = "fewer layers"
    if setup.cpu_experts == AUTO:
        rest = sum(each.card for each in found.layers[:count])
        allowed = f"a card with {mib(rest)} more for experts, or a host with as much as they take"
    raise StartupError(
        f"cpu_experts: the routed experts of {count} layers take {mib(experts)} in the CPU kernels'"
        f" layout, pinned buffers {mib(found.pinned)}{tier}, and {mib(free)} are free in the host's"
        f" memory; allowed are {allowed}"
    )


def _on_host(places: ExpertPlaces) -> list[str]:
    return [
        f"layers.{number}.mlp"
        for number, each in enumerate(places.layers)
        if each and each[0].memory == "host"
    ]


def _obstacle(
    setup: Setup, config: ModelConfig, prepared: PreparedModel, ranks: Ranks
) -> str | None:
    if ranks.place.ranks > 1:
        return f"{ranks.place.ranks} ranks share the model, and experts beside a card have one"
    kept = prepared.weights.format == "gguf" and stays_quantised(setup.dtype, prepared.weights)
    if setup.quantization != "none" or not kept:
        return (
            f"the experts must stay as a GGUF file has them; dtype is {setup.dtype}, quantization "
            f"{setup.quantization}, and the weights are {prepared.weights.dtype}"
        )
    if setup.lora_experts:
        return "adapters may change experts (lora_experts), which these kernels don't do"
    for number in range(config.num_layers):
        reason = _unfit(config.layer(number).feed_forward)
        if reason is not None:
            return f"layer {number} {reason}"
    return None


def _unfit(spec: FeedForwardSpec) -> str | None:
    """Returns what a layer's experts have that the kernels don't, or None."""
    experts = spec.experts
    if experts is None:
        return None
    if not spec.gated or spec.activation not in CPU_KINDS:
        gate = "a gate" if spec.gated else "no gate"
        return (
            f"has experts with {gate} and the activation {spec.activation}; allowed are gates with "
            f"{', '.join(CPU_KINDS)}"
        )
    if experts.limit is not None or spec.gate_limit is not None:
        return "has experts whose gates are bounded"
    if experts.weighs_input or experts.by_token:
        return "has experts whose input is weighed, or that a token's id chooses"
    return None
