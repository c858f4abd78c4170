"""Loads a model onto the CPU: weights, and a KV cache in the memory that is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import StartupError
from penstock.process.start_phases import START
from penstock.protocol.to_worker import Setup
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.device.queue import HostQueue
from penstock_worker.forward.interface import Forward, LikeliestForward, Recipe
from penstock_worker.loading.parts import StepParts
from penstock_worker.machine.memory import mib, pool_blocks
from penstock_worker.metrics.phases import Phases
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.sampler import CPUSampler, Sampler
from penstock_worker.sampler import choose as choose_sampler
from penstock_worker.sampler.interface import HostSampler
from penstock_worker.states.planning import planned_bytes
from penstock_worker.steps.runner import ShareThreads
from penstock_worker.steps.torch_context import without_gradients
from penstock_worker.stores.host_cache import HostCache

if TYPE_CHECKING:
    from penstock_worker.speculation.loaders import LoadsDrafts
    from penstock_worker.steps.generate import Likeliest


def host_parts(
    recipe: Recipe,
    setup: Setup,
    draft: LoadsDrafts | None,
    threads: int,
    phases: Phases,
    ranks: Ranks,
) -> StepParts:
    """Loads a model onto the CPU, and with it what drafts, of which `recipe` is then. Of a KV block
    only the served model's parts are kept elsewhere: what drafts computes its own again."""
    # Either each thread computes and samples a share of the step, or one call uses all threads.
    shares = threads if recipe.threads_by_share else 1
    sampler = choose_sampler(threads // shares)
    with without_gradients():
        forward, blocks, host_blocks = load_on_host(recipe, setup, ranks)
        kv_blocks = forward.kv_blocks()
        kept = kv_blocks if draft is None else kv_blocks[: draft.served_parts]
        copies = BlockCopies(kv_blocks, host_blocks)
    if recipe.media is not None:
        phases.time(recipe.media, "encode", "encode")
    states = {} if recipe.states is None else {"states": mib(planned_bytes(recipe.states, setup))}
    queue = HostQueue()
    return StepParts(
        device="cpu",
        queue=queue,
        stage_queue=queue,
        forward=forward,
        timed_forward=phases.watch(forward, "logits", "forward"),
        sampler=HostSampler(sampler),
        timed_sampler=HostSampler(phases.watch(sampler, "sample", "sample")),
        copies=copies,
        timed_copies=phases.watch(copies, "make", "copies"),
        copy_seconds=copies.seconds(),
        blocks=blocks,
        cache=HostCache(kept),
        likeliest=_likeliest(forward, sampler, phases),
        threads=ShareThreads(shares) if shares > 1 else None,
        goes_on=ranks.place.ranks == 1 and recipe.states is None,
        give_back=copies.give_back,
        told={"threads": threads, "kv_memory": mib(blocks * recipe.block_bytes), **states},
    )


def _likeliest(forward: Forward, sampler: Sampler, phases: Phases) -> Likeliest | None:
    """Returns what gives the CPU kernels' sampler tokens in place of logits."""
    if not isinstance(forward, LikeliestForward) or not forward.finds_likeliest:
        return None
    if not isinstance(sampler, CPUSampler):
        return None
    return phases.watch(forward, "likeliest", "forward").likeliest


def load_on_host(recipe: Recipe, setup: Setup, ranks: Ranks = ALONE) -> tuple[Forward, int, int]:
    """Returns (the forward pass, its number of KV blocks, that of the host tier)."""
    START.passed("reading headers")
    try:
        with_blocks = recipe.build()
    except (MemoryError, RuntimeError) as error:
        raise StartupError(f"not enough memory for the weights: {error}") from error
    START.passed("weights read and laid out", reads=True)
    own = 0 if recipe.states is None else recipe.states.own_blocks
    states = planned_bytes(recipe.states, setup) + own * recipe.block_bytes
    media = 0 if recipe.media is None else recipe.media.nbytes
    adapters = 0 if recipe.adapters is None else recipe.adapters.nbytes
    blocks = pool_blocks(setup, recipe.block_bytes, recipe.kv_groups, states, media, adapters)
    host_blocks = setup.host_kv_bytes // recipe.block_bytes
    blocks, host_blocks = ranks.least([blocks, host_blocks])
    try:
        forward = with_blocks(blocks + own)
    except (MemoryError, RuntimeError) as error:
        also = f" and {mib(states)} of states" if states else ""
        raise StartupError(f"not enough memory for {blocks} KV blocks{also}: {error}") from error
    START.passed("KV cache")
    return forward, blocks, host_blocks
