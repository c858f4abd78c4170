"""Log-probabilities of listed ids (TokenSampling.logprob_ids) in place of the likeliest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.protocol.common import TokenLogprobs
from penstock_worker.sampler.interface import IMPOSSIBLE, SampleRequest


def listed_ids(token: int, ids: Sequence[int]) -> list[int]:
    """What is reported of a token, in order."""
    return list(dict.fromkeys((token, *ids)))


def listed_logprobs(
    token: int, own: TokenLogprobs, ids: Sequence[int], values: np.ndarray
) -> TokenLogprobs:
    """Returns what is reported. own: the token's.  values: float32, of `ids`, then of others."""
    of_ids = np.maximum(values[: len(ids)], np.float32(IMPOSSIBLE)).tolist()
    by_id = dict(zip(ids, of_ids, strict=True)) | {token: own.logprob}
    shown = listed_ids(token, ids)
    return TokenLogprobs(own.logprob, tuple(shown), tuple([by_id[each] for each in shown]))


def listed_places(
    requests: Sequence[SampleRequest], arrays: dict[str, np.ndarray]
) -> dict[int, int]:
    """Adds the listed ids of all rows, and the row of each, [ids] int64, to what is sent to a
    device. Returns the place of each row's first."""
    places: dict[int, int] = {}
    rows: list[int] = []
    ids: list[int] = []
    for row, request in enumerate(requests):
        sampling = request.sampling
        if sampling.logprobs is not None and sampling.logprob_ids:
            places[row] = len(ids)
            rows += [row] * len(sampling.logprob_ids)
            ids += sampling.logprob_ids
    if ids:
        arrays["listed rows"] = np.array(rows, np.int64)
        arrays["listed ids"] = np.array(ids, np.int64)
    return places
