"""Which releases a card and its host serve together, and how fast, by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.recommend.beside_card import (
    BesideCard,
    ExpertShape,
    ExpertsPlaced,
    HostFigures,
    PlacedModel,
    place_experts,
)
from penstock.recommend.cards import GB, Accelerator
from penstock.recommend.fits import COMFORTABLE, CONTEXT, PROCESSES, Machine
from penstock.recommend.releases import RELEASES, KnownRelease

STREAMS = 8
"""Answers at once, for a second figure."""
PROMPT = 2048
"""Tokens of the prompt whose speed is told."""
_DENSE = ExpertShape(0, 1, 1, 1, 1, 1)


class CardFit(msgspec.Struct, frozen=True):
    """A release on a card and its host. Sizes are in bytes."""

    model: str
    parameters: int
    download: int
    card: int
    """Of weights on the card."""
    host: int
    """Of experts in the host's memory."""
    on_host: int
    """Layers whose experts these are."""
    layers: int
    """Layers that have experts."""
    missing: int
    """What card and host lack together; 0: it fits."""
    tokens_per_s: float
    """Of one answer."""
    streams_tokens_per_s: float
    """Of STREAMS answers together."""
    prompt_tokens_per_s: float
    """Of a prompt of PROMPT tokens."""
    command: str

    @property
    def beside(self) -> bool:
        """Whether the card alone can't serve it."""
        return self.on_host > 0


def placed_model(release: KnownRelease) -> PlacedModel:
    """Returns what estimates go by."""
    experts = release.experts or _DENSE
    routed = experts.size
    active = experts.layers * experts.active * experts.nbytes
    return PlacedModel(
        layers=release.layers,
        rest=release.weights - routed,
        read=release.read - active,
        kv_per_token=release.kv_per_token,
        experts=experts,
        card_share=release.download / release.weights,
    )


def host_figures(machine: Machine) -> HostFigures:
    """Returns what of the machine computes experts."""
    free = max(0, machine.free - PROCESSES)
    return HostFigures(machine.bandwidth / GB, machine.cores, free / GB)


def card_fits(
    machine: Machine,
    card: Accelerator,
    context: int = CONTEXT,
    releases: Sequence[KnownRelease] = RELEASES,
) -> list[CardFit]:
    """Returns the best first: those that fit and are comfortably fast, then those that fit and are
    slow, of both the one with the most parameters; last those that lack memory."""
    host = host_figures(machine)
    found = [_fit(release, card, host, context) for release in releases]
    return sorted(
        found, key=lambda fit: (fit.missing, fit.tokens_per_s < COMFORTABLE, -fit.parameters)
    )


def _fit(release: KnownRelease, card: Accelerator, host: HostFigures, context: int) -> CardFit:
    model = placed_model(release)
    placed = place_experts(model, card, host, context)
    beside = BesideCard(model, card, host, placed.on_host)
    experts, half = model.experts, context // 2
    held = placed.on_host * experts.count * experts.nbytes
    return CardFit(
        model=release.name,
        parameters=release.parameters,
        download=release.download,
        card=round(model.rest + (experts.size - held) * model.card_share),
        host=held,
        on_host=placed.on_host,
        layers=experts.layers,
        missing=_missing(placed),
        tokens_per_s=beside.decoded(1, half),
        streams_tokens_per_s=beside.decoded(STREAMS, half),
        prompt_tokens_per_s=beside.prompt(PROMPT),
        command=_command(release, placed),
    )


def _missing(placed: ExpertsPlaced) -> int:
    return placed.card_missing + placed.host_missing


def _command(release: KnownRelease, placed: ExpertsPlaced) -> str:
    also = " --cpu-experts auto" if placed.on_host else ""
    return f"penstock serve {release.name} --device cuda{also}"
