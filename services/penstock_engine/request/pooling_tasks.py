"""How a model makes vectors, and what may be asked of it."""

from __future__ import annotations

import msgspec

from penstock.config.settings import EngineConfig, ModelSettings
from penstock.errors import StartupError
from penstock.model.config import EncoderConfig
from penstock.model.pooling_config import PoolingConfig
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.common import PoolingTask
from penstock_engine.scheduler.whole_inputs import FLOAT_BYTES, most_told, numbers_per_token


def pooling_of(model: PreparedModel, settings: ModelSettings) -> PoolingConfig | None:
    """How the model makes vectors; None: it generates text.

    Raises StartupError where the settings ask for what the model can't be.
    """
    stated = model.pooling
    if settings.runner == "generate":
        if isinstance(model.config, EncoderConfig):
            raise StartupError(
                f"runner is generate; {model.name} is a pooling model and generates no text; "
                "allowed: auto, pooling"
            )
        return None
    if stated is None and settings.runner == "auto" and settings.convert == "auto":
        return None
    if model.encoder_rows:
        raise StartupError(
            f"runner is {settings.runner} and convert {settings.convert}; {model.name} is an "
            "encoder-decoder model, which can't be pooled; leave both at auto"
        )
    if stated is None:
        stated = PoolingConfig(mode="last", normalize=True, size=model.config.hidden_size)
    if settings.convert == "classify" and not stated.labels:
        raise StartupError(f"convert is classify; {model.name} has no classification head")
    if settings.convert == "embed":
        return msgspec.structs.replace(stated, labels=(), answers=None, template=None)
    return stated


def tasks_of(
    pooling: PoolingConfig | None, model: PreparedModel, config: EngineConfig
) -> tuple[PoolingTask, ...]:
    """What may be asked of the model, what is meant by default first; nothing of one that
    generates.

    Vectors of every token are an encoder's only, where pictures have none, and where all that one
    step can give fits into a message. A model may make nothing but these, or classes of these, or
    nothing but weights of its vocabulary.
    """
    if pooling is None:
        return ()
    first: PoolingTask = "classify" if pooling.labels else "embed"
    if not isinstance(model.config, EncoderConfig) or model.config.space is not None:
        return (first,)
    tokens = config.scheduler.max_num_batched_tokens
    fits = tokens <= most_told(pooling, config)
    by_token = pooling.by_token or (pooling.late is not None and pooling.late.alone)
    if by_token and not fits:
        raise StartupError(
            f"what a step of {tokens} tokens gives takes "
            f"{FLOAT_BYTES * numbers_per_token(pooling) * tokens} bytes; at most half of "
            f"max_message_bytes ({config.transport.max_message_bytes}) is allowed, so lower "
            "max_num_batched_tokens and max_model_len"
        )
    found: list[PoolingTask] = []
    if pooling.by_token:
        found.append("token_classify")
    elif pooling.sparse is not None and pooling.sparse.tokens is None:
        return ("embed_sparse",)
    elif pooling.late is None or not pooling.late.alone:
        found.append(first)
    if fits:
        found.append("token_embed")
    if pooling.sparse is not None:
        found.append("embed_sparse")
    return tuple(found)
