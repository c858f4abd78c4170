"""Choosing next tokens from logits: on the CPU kernels, or in torch where they are missing."""

from __future__ import annotations

from penstock import logs
from penstock_worker.sampler.cpu import CPUSampler
from penstock_worker.sampler.interface import Ask, Choice, Sampler
from penstock_worker.sampler.reference import ReferenceSampler
from penstock_worker.sampler.rules import Rules, rules_of

log = logs.get(__name__)


def choose(threads: int) -> Sampler:
    """The fastest that this machine has. threads: that one call may use."""
    try:
        return CPUSampler(threads)
    except ImportError as error:
        log.warning("a slower sampler is used", sampler="reference", reason=str(error))
        return ReferenceSampler()


__all__ = [
    "Ask",
    "CPUSampler",
    "Choice",
    "ReferenceSampler",
    "Rules",
    "Sampler",
    "choose",
    "rules_of",
]
