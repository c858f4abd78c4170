"""What a release takes on a machine, and how fast it answers there, by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.recommend.releases import BETTER, RELEASES, KnownRelease

GIB = 1 << 30
CONTEXT = 4096
"""Tokens of a conversation, for which there is to be memory."""
PROCESSES = 300 << 20
"""Bytes that gateway, engine core and worker take, whatever the model."""
PER_VOCABULARY = 2048
"""Bytes that they take for each token of the vocabulary: tokenizers and grammars. With PROCESSES,
measured for vocabularies of 49,152, 151,936 and 262,144 tokens (0.4, 0.6 and 0.8 GiB)."""
PER_LAYER = 0.1e-3
"""Seconds per layer and token in addition to reading weights: attention, norms, synchronisation of
threads. From loadtest/results/inprocess.md, decoding one stream without drafts: SmolLM2-135M, of
which 5.4 ms a token are 2.8 of reading, and 1.5 billion random weights, 25.3 ms and 21.9."""
COMFORTABLE = 5.0
"""Tokens per second, about as fast as people read: models that are slower come after the rest."""
ORDINARY = 30e9
"""Bytes per second that two cores of an ordinary server read, for figures without a machine."""


BUSY = 0.1
"""The share of the processors' time from which on others' work shows in what is measured."""


class Machine(msgspec.Struct, frozen=True):
    """What of a machine matters to a model on its CPU."""

    memory: int
    """Bytes, within the limits of its control group."""
    free: int
    """Bytes of it that are free."""
    processor: str
    cores: int
    kernels: str
    """The instruction set that the kernels use; "reference" without compiled ones."""
    bandwidth: float
    """Bytes per second that all cores read from memory together."""
    measured: str
    """How that was measured."""
    others: float = 0.0
    """The share of the processors' time that others took meanwhile, 0 to 1."""

    @property
    def busy(self) -> bool:
        """Whether an idle machine would have been measured to be noticeably faster."""
        return self.others > BUSY

    @property
    def fast(self) -> bool:
        """Whether the kernels are those that the estimates are about."""
        return self.kernels not in ("portable", "reference")


class Fit(msgspec.Struct, frozen=True):
    """A release on a machine. Sizes are in bytes."""

    model: str
    parameters: int
    download: int
    memory: int
    """Needed for weights, keys and values of one conversation, and processes."""
    missing: int
    """What of the memory isn't free; 0: the model fits."""
    tokens_per_s: float | None
    """Expected of one answer; None: not known for such kernels."""
    command: str


def memory(release: KnownRelease, context: int) -> int:
    """Bytes for the weights, `context` tokens, and the processes."""
    processes = PROCESSES + PER_VOCABULARY * release.vocabulary
    return release.weights + release.kv_per_token * context + processes


def tokens_per_s(release: KnownRelease, bandwidth: float, context: int) -> float:
    """The speed of one answer, when half of the context is in use: each token reads the weights,
    and all keys and values before it."""
    size = release.read + release.kv_per_token * context / 2
    return 1 / (size / bandwidth + release.layers * PER_LAYER)


def fits(
    machine: Machine, context: int = CONTEXT, releases: Sequence[KnownRelease] = RELEASES
) -> list[Fit]:
    """The best first: those that fit and are comfortably fast, then those that fit and are slow, of
    both the one with the most parameters; last those that lack memory, the least before more."""
    found = [_fit(release, machine, context) for release in releases]
    return sorted(found, key=lambda fit: (fit.missing, _slow(fit), -fit.parameters))


def _fit(release: KnownRelease, machine: Machine, context: int) -> Fit:
    needed = memory(release, context)
    speed = tokens_per_s(release, machine.bandwidth, context) if machine.fast else None
    return Fit(
        model=release.name,
        parameters=release.parameters,
        download=release.download,
        memory=needed,
        missing=max(0, needed - machine.free),
        tokens_per_s=speed,
        command=f"penstock serve {release.name}",
    )


def _slow(fit: Fit) -> bool:
    return fit.tokens_per_s is not None and fit.tokens_per_s < COMFORTABLE


@dataclass(frozen=True)
class Better:
    """A better model than the demonstration, as the page names it."""

    name: str
    gib: float
    tokens_per_s: float


def better() -> list[Better]:
    """What it takes, and its estimated speed where memory reads ORDINARY bytes per second."""
    return [
        Better(
            release.name,
            memory(release, CONTEXT) / GIB,
            tokens_per_s(release, ORDINARY, CONTEXT),
        )
        for name in BETTER
        for release in RELEASES
        if release.name == name
    ]
