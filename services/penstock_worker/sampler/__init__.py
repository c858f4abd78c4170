"""Samples next tokens from logits: by the CPU kernels, or in torch where these are missing."""

from __future__ import annotations

from penstock.process import logs
from penstock_worker.sampler.adjustments import SequenceAdjustments, adjustments_of
from penstock_worker.sampler.cpu import CPUSampler
from penstock_worker.sampler.interface import SampledToken, Sampler, SampleRequest
from penstock_worker.sampler.reference import ReferenceSampler

log = logs.get(__name__)


def choose(threads: int) -> Sampler:
    """Returns the fastest sampler that this machine supports. `threads` is what one call may
    use."""
    try:
        return CPUSampler(threads)
    except ImportError as error:
        log.warning("a slower sampler is used", sampler="reference", reason=str(error))
        return ReferenceSampler()


__all__ = [
    "CPUSampler",
    "ReferenceSampler",
    "SampleRequest",
    "SampledToken",
    "Sampler",
    "SequenceAdjustments",
    "adjustments_of",
    "choose",
]
