"""The sampling parameters that a worker gets."""

from __future__ import annotations

import msgspec

from penstock.protocol.common import Stopping, TokenSampling


def worker_sampling(
    sampling: TokenSampling, stopping: Stopping, eos_token_ids: tuple[int, ...]
) -> TokenSampling:
    """The sampling that a worker gets: ids that would end the sequence are held back at first.

    Only the engine knows all of them: the model's EOS ids and the request's own.
    """
    ends = (
        stopping.stop_token_ids
        if stopping.ignore_eos
        else (
            *eos_token_ids,
            *stopping.stop_token_ids,
        )
    )
    held_back = tuple(sorted(frozenset(ends))) if stopping.min_tokens else ()
    return msgspec.structs.replace(sampling, min_tokens=stopping.min_tokens, held_back=held_back)
