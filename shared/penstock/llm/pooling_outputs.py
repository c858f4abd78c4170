"""What encode, embed, classify and score return. Names and shapes as in vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

Output = TypeVar("Output")


@dataclass(slots=True)
class PoolingOutput:
    """data: float32, [size] or [tokens, size]; of a sparse vector, its numbers that aren't 0.
    indices: where these are, int32, ascending; None: of another."""

    data: np.ndarray
    indices: np.ndarray | None = None


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    """probs: of each label, in the model's order."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    score: float


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Output]):
    """A request and what the model made of it.

    prompt_token_ids: of a score by two embeddings, those of both texts.
    num_cached_tokens: found in the KV cache; None where there is none.
    """

    request_id: str
    outputs: Output
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int | None = None


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """outputs.embedding"""


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """outputs.probs"""


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """outputs.score"""
