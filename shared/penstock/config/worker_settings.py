"""Settings of the worker."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.errors import StartupError
from penstock.process.numa import AUTO, OFF, RankNodes, parse_ranks

Device = Literal["auto", "cpu", "cuda"]


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The worker."""

    device: Annotated[
        Device, Meta(description="Device to compute on; auto: a GPU if there is one.")
    ] = "auto"
    attention_backend: Annotated[
        str,
        Meta(description="Kernel backend, ours or a plug-in's; auto: the fastest on this machine."),
    ] = "auto"
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="Compute threads; default: one for each usable core."),
    ] = None
    numa_node: Annotated[
        Annotated[int, Meta(ge=0, le=1023)] | None,
        Meta(description="NUMA node whose CPUs and memory the worker uses; default: any."),
    ] = None
    numa: Annotated[
        str,
        Meta(
            description="auto: a rank for each NUMA node, if the model can be split so; or the "
            "nodes of each rank, as 0,1 (0+1: one rank with both); or off."
        ),
    ] = OFF
    batch_invariant: Annotated[
        bool,
        Meta(description="On CUDA: the same bits in any batch, as always on a CPU; slower."),
    ] = False
    enforce_eager: Annotated[
        bool, Meta(description="On CUDA: decode without CUDA graphs; slower, for debugging.")
    ] = False
    cpu_experts: Annotated[
        str,
        Meta(
            description="On CUDA, for mixtures of experts in GGUF files: of how many layers, from "
            "the first one on, routed experts lie in the host's memory and are computed there; "
            "all; auto: as many as the card has no room for; or off. With any number, outputs are "
            "the same."
        ),
    ] = OFF
    flash_attention_3: Annotated[
        bool,
        Meta(
            description="On Hopper GPUs: FlashAttention 3 for prompts' long chunks where its "
            "package is installed; never with batch_invariant."
        ),
    ] = True
    worker_extensions: Annotated[
        str,
        Meta(
            description="Plug-ins whose methods collective_rpc may call: all installed ones, none,"
            " or names with commas."
        ),
    ] = "all"

    def rank_nodes(self, ranks: int | None) -> RankNodes:
        """The NUMA nodes of each of so many ranks, empty for any; None: of as many as are named.
        Raises StartupError for words that aren't nodes, or those of another number of ranks."""
        if self.numa == OFF:
            return ((() if self.numa_node is None else (self.numa_node,)),) * (ranks or 1)
        self.check_numa_alone()
        if self.numa == AUTO:
            raise StartupError(
                "numa is auto, which `penstock serve` turns into nodes: name those of each rank"
            )
        try:
            found = parse_ranks(self.numa)
        except ValueError as error:
            raise StartupError(
                f"numa is {self.numa!r}: {error}; allowed: {OFF}, {AUTO}, or the nodes of each"
                " rank, as 0,1 or 0+1"
            ) from None
        if ranks is not None and len(found) != ranks:
            raise StartupError(f"numa names nodes of {len(found)} ranks, and there are {ranks}")
        return found

    def check_numa_alone(self) -> None:
        """Raises StartupError where two settings name nodes."""
        if self.numa != OFF and self.numa_node is not None:
            raise StartupError(
                f"numa is {self.numa} and numa_node {self.numa_node}: one of them is enough"
            )
