"""How sparse vectors over a model's vocabulary are written."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.client.pool_request import PoolResult
from penstock_gateway.generate.chunked_reply import JsonList, Pace, Splices, paced
from penstock_gateway.generate.reply import encoder
from penstock_gateway.pooling.embeddings import NUMBERS_PER_TOKEN
from penstock_gateway.pooling.endpoint import Call

WEIGHTS = 512
"""Weights that are written at once."""


class TokenWeight(msgspec.Struct, frozen=True, gc=False):
    """index: the token's id."""

    index: int
    value: float


class NamedWeight(msgspec.Struct, frozen=True, gc=False):
    """index: the token's id.  token: its text in the vocabulary."""

    index: int
    token: str
    value: float


async def weight_list(
    results: Sequence[PoolResult], call: Call, *, named: bool
) -> list[list[bytes]]:
    """Returns a JSON list of each result's weights, in pieces. named: with the tokens' texts."""
    tokenizer = call.engine.text.tokenizer
    found: list[list[bytes]] = []
    async with paced(sum(result.size for result in results) // NUMBERS_PER_TOKEN) as pace:
        for result in results:
            places, values, made = result.vectors.indexes(), result.values(), JsonList()
            for at in range(0, len(places), WEIGHTS):
                ids, numbers = places[at : at + WEIGHTS], values[at : at + WEIGHTS]
                made.add(
                    [
                        NamedWeight(index, name, value)
                        for index, name, value in zip(
                            ids, tokenizer.token_names(ids), numbers, strict=True
                        )
                    ]
                    if named
                    else [
                        TokenWeight(index, value) for index, value in zip(ids, numbers, strict=True)
                    ]
                )
                await pace.rest()
            found.append(made.pieces())
    return found


async def named_weights(results: Sequence[PoolResult], call: Call, shown: type) -> object:
    """What stands in a reply for the list of these vectors. shown: an element, of its index and its
    weights."""
    made, pace = JsonList(), Pace()
    for index, pieces in enumerate(await weight_list(results, call, named=True)):
        inner = Splices()
        made.add_written(inner.spliced(encoder.encode(shown(index, inner.put(pieces)))))
        await pace.rest()
    return call.splices.put(made.pieces())
