"""A step's cost where routed experts lie in the host's memory beside a device."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.errors import InvalidRequest
from penstock.model.config import ModelConfig
from penstock.model.expert_places import expert_counts, number_of
from penstock.prepare.describe import Description, ExpertBytes
from penstock.recommend.beside_card import (
    BesideCard,
    ExpertShape,
    ExpertsPlaced,
    HostFigures,
    PlacedModel,
    place_experts,
)
from penstock.recommend.cards import GB, LEAST_FIGURE, MOST_FIGURE, Accelerator
from penstock_planning.simulate.cost import MOST_MS, StepCost

CONTEXT = 4096
"""Tokens that there is to be room for, at least."""
POINTS = tuple(sorted({round(2 ** (number / 4)) for number in range(56)}))
"""Tokens of steps that are reckoned: of others, costs are between those of their neighbours."""


def parse_host(text: str) -> HostFigures:
    """`bandwidth=60,threads=16,memory=64`. Raises InvalidRequest."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    try:
        given = {name.strip(): float(value) for name, _, value in pairs}
        if not all(LEAST_FIGURE <= value <= MOST_FIGURE for value in given.values()):
            raise ValueError
        return msgspec.convert(given, HostFigures, strict=False)
    except (ValueError, msgspec.ValidationError):
        raise InvalidRequest(
            f"--host {text[:80]!r}: it takes bandwidth=60,threads=16,memory=64 (GB/s at which its "
            "memory is read, threads that compute, GB for experts)",
            param="host",
        ) from None


def placed_model(
    known: Description, config: ModelConfig, held: ExpertBytes | None = None
) -> PlacedModel | None:
    """Returns what estimates go by; None for a model without experts.

    `held`: what experts take. None: unknown, and all weights count as many bytes as they have on
    average in the files.
    """
    if known.experts is None or not known.parameters:
        return None
    layers = [each for each, count in enumerate(expert_counts(config)) if count]
    feed_forward = config.layer(layers[-1]).feed_forward
    spec, each = feed_forward.experts, known.size / known.parameters
    if spec is None:
        return None
    matrices = 3 if feed_forward.gated else 2
    width = spec.width(config.hidden_size)
    weights = matrices * width * spec.inner
    count = len(layers) * spec.count
    if held is None:
        size = round(each * weights) * count
        held = ExpertBytes(size, size, size)
    shape = ExpertShape(
        layers=len(layers),
        count=spec.count,
        active=spec.active,
        nbytes=round(held.host / count),
        weights=weights,
        width=width,
        shared=round(each * matrices * config.hidden_size * spec.shared_inner),
    )
    rest = max(0, known.size - held.file)
    kv, share = known.kv_bytes_per_token, held.card / held.host
    return PlacedModel(config.num_layers, rest, rest, kv, shape, share)


@dataclass(frozen=True)
class BesidePlan:
    """A step's cost, and where experts are."""

    cost: StepCost
    placed: ExpertsPlaced
    blocks: int
    """KV blocks that fit."""
    words: str


def beside_plan(
    model: PlacedModel, card: Accelerator, host: HostFigures, words: str, block_size: int
) -> BesidePlan:
    """Returns the estimate. `words`: auto, all, or a number of layers. Raises InvalidRequest for
    other words, and for what doesn't fit."""
    most = model.experts.layers
    if words not in ("auto", "all") and not 0 <= number_of(words) <= most:
        raise InvalidRequest(
            f"--cpu-experts is {words[:80]!r}; allowed are 0 to {most}, the number of layers with "
            "experts, all, and auto",
            param="cpu_experts",
        )
    placed = place_experts(model, card, host, CONTEXT, words)
    if not placed.fits:
        lacking = [
            f"the {name} lacks {missing / GB:,.1f} GB"
            for name, missing in (("card", placed.card_missing), ("host", placed.host_missing))
            if missing
        ]
        raise InvalidRequest(
            f"--cpu-experts is {words}, with {placed.on_host} of {most} layers' experts on the "
            f"host: {' and '.join(lacking)}",
            param="cpu_experts",
        )
    room, beside = placed.room, BesideCard(model, card, host, placed.on_host)
    each = model.experts.count * model.experts.nbytes * model.card_share
    on_card = round((most - placed.on_host) * each)
    left = room.usable - room.steps - room.rest - room.copies - on_card
    return BesidePlan(
        cost=_cost(beside),
        placed=placed,
        blocks=max(1, min(10_000_000, left // max(1, model.kv_per_token * block_size))),
        words=f"experts of {placed.on_host} of {most} layers on the host ({host.bandwidth:,.0f} "
        f"GB/s, {host.threads} threads, {card.link:,.0f} GB/s to it)",
    )


def _cost(beside: BesideCard) -> StepCost:
    """Returns what steps take by their tokens, whose experts are what costs most, and to read the
    keys and values of sequences, all of which a step waits for. Beyond MOST_MS, a step's cost is
    that of the points before. Raises InvalidRequest where two points aren't below it."""
    curve, least, experts = [], 0.0, beside.model.experts
    # The last step whose experts aren't copied may take longer than larger ones.
    last = -(-beside.threshold * experts.count // experts.active) - 1
    for tokens in sorted({*POINTS, max(1, last), last + 1}):
        least = max(least, 1000 * beside.step(tokens, tokens, 0).whole - beside.card.overhead)
        if least > MOST_MS:
            break
        curve.append((tokens, least))
    if len(curve) < 2:
        host = beside.host
        raise InvalidRequest(
            f"--host with bandwidth={host.bandwidth:g},threads={host.threads}: a step of {tokens} "
            f"tokens takes {least / 1000:,.0f} s there; allowed are {MOST_MS / 1000:.0f} s",
            param="host",
        )
    return StepCost(
        base_ms=0.0,
        token_ms=0.0,
        sequence_ms=0.0,
        read_ms=1000 * beside.seconds_of_kv(1),
        overhead_ms=beside.card.overhead,
        curve=tuple(curve),
    )
