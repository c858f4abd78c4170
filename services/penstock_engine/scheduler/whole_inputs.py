"""How long inputs may be that are computed in one step, as an encoder's are: a step has room for at
least one of them, whatever its budget."""

from __future__ import annotations

import msgspec

from penstock.config.settings import EngineConfig
from penstock.model.pooling_config import PoolingConfig

FLOAT_BYTES = 4


def numbers_per_token(pooling: PoolingConfig) -> int:
    """What one token may give at most."""
    return max(pooling.token_size, len(pooling.labels) if pooling.by_token else 0)


def most_told(pooling: PoolingConfig, config: EngineConfig) -> int:
    """Tokens of a step whose numbers fit into half a message."""
    bytes_per_token = 2 * FLOAT_BYTES * numbers_per_token(pooling)
    return config.transport.max_message_bytes // max(1, bytes_per_token)


def longest_by_default(longest: int, pooling: PoolingConfig | None, config: EngineConfig) -> int:
    """Returns the tokens of an input where max_model_len isn't set: all that the model takes, as
    far as vectors of each token can be reported. longest: tokens that the model takes."""
    reportable = longest if pooling is None else most_told(pooling, config)
    return min(longest, max(config.scheduler.max_num_batched_tokens, reportable))


def with_room(config: EngineConfig, longest: int) -> EngineConfig:
    """The settings with a step's budget of at least so many tokens."""
    if config.scheduler.max_num_batched_tokens >= longest:
        return config
    scheduler = msgspec.structs.replace(config.scheduler, max_num_batched_tokens=longest)
    return msgspec.structs.replace(config, scheduler=scheduler)
