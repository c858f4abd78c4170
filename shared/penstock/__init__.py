"""Penstock: an LLM serving system. This package is what users import, and what processes share.

Names are imported when they are first used, so that `import penstock` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.cli.http_client import resumed_events
    from penstock.llm import (
        LLM,
        AsyncLLM,
        BeamSearchParams,
        CompletionOutput,
        Logprob,
        RequestMetrics,
        RequestOutput,
        TextPrompt,
        TokensPrompt,
    )
    from penstock.llm.asynchronous import AsyncLLM as AsyncLLMEngine
    from penstock.llm.engine_args import AsyncEngineArgs, EngineArgs, FlexibleArgumentParser
    from penstock.llm.pooling_outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from penstock.request.lora import LoRARequest
    from penstock.request.pooling_params import PoolingParams
    from penstock.request.sampling_params import (
        RepetitionDetectionParams,
        RequestOutputKind,
        SamplingParams,
    )
    from penstock.request.structured_outputs import StructuredOutputs
    from penstock.request.structured_outputs import StructuredOutputs as StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "FlexibleArgumentParser",
    "LoRARequest",
    "Logprob",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RepetitionDetectionParams",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputs",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
    "resumed_events",
]

_HOMES = {
    "LLM": "penstock.llm",
    "AsyncLLM": "penstock.llm",
    "BeamSearchParams": "penstock.client.beam_params",
    "CompletionOutput": "penstock.llm",
    "Logprob": "penstock.llm",
    "RequestMetrics": "penstock.llm",
    "RequestOutput": "penstock.llm",
    "TextPrompt": "penstock.llm",
    "TokensPrompt": "penstock.llm",
    "AsyncEngineArgs": "penstock.llm.engine_args",
    "EngineArgs": "penstock.llm.engine_args",
    "FlexibleArgumentParser": "penstock.llm.engine_args",
    "LoRARequest": "penstock.request.lora",
    "RepetitionDetectionParams": "penstock.request.sampling_params",
    "RequestOutputKind": "penstock.request.sampling_params",
    "PoolingParams": "penstock.request.pooling_params",
    "ClassificationOutput": "penstock.llm.pooling_outputs",
    "ClassificationRequestOutput": "penstock.llm.pooling_outputs",
    "EmbeddingOutput": "penstock.llm.pooling_outputs",
    "EmbeddingRequestOutput": "penstock.llm.pooling_outputs",
    "PoolingOutput": "penstock.llm.pooling_outputs",
    "PoolingRequestOutput": "penstock.llm.pooling_outputs",
    "ScoringOutput": "penstock.llm.pooling_outputs",
    "ScoringRequestOutput": "penstock.llm.pooling_outputs",
    "SamplingParams": "penstock.request.sampling_params",
    "resumed_events": "penstock.cli.http_client",
    "StructuredOutputs": "penstock.request.structured_outputs",
}

_ALIASES = {"AsyncLLMEngine": "AsyncLLM", "StructuredOutputsParams": "StructuredOutputs"}
"""vLLM's names for the same things."""


def __getattr__(name: str) -> Any:
    own = _ALIASES.get(name, name)
    home = _HOMES.get(own)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), own)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_ALIASES})
