"""Cohere's SDK."""

from __future__ import annotations

import os
from typing import Any

import cohere
from report import TEXTS, arguments, run

_, _, POOLING_URL = arguments()
client = cohere.ClientV2(base_url=POOLING_URL, api_key="unused", timeout=240)
MODEL = os.environ["POOLING_MODEL"]


def embeddings() -> Any:
    reply = client.embed(
        model=MODEL, texts=TEXTS, input_type="search_document", embedding_types=["float"]
    )
    return reply.embeddings.float_


def packed() -> Any:
    """The texts as they came back, their tokens, and the signs of their numbers."""
    reply = client.embed(
        model=MODEL, texts=TEXTS, input_type="search_query", embedding_types=["ubinary", "binary"]
    )
    signs = reply.embeddings
    return [reply.texts, reply.meta.billed_units.input_tokens, signs.ubinary, signs.binary]


def ranks() -> Any:
    reply = client.rerank(model=MODEL, query=TEXTS[0], documents=TEXTS, top_n=2)
    return [[each.index, each.relevance_score] for each in reply.results]


run({"embeddings": embeddings, "packed": packed, "ranks": ranks})
