"""What may be asked of a pooling model."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from penstock.errors import InvalidRequest
from penstock.model.pooling_config import PoolingConfig
from penstock.protocol.common import PoolingTask


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names as in vLLM. task: embed, token_embed (each token's vector), classify, token_classify or
    embed_sparse; None: the method's own.  dimensions: numbers kept of each vector.  normalize: to
    length 1, after that.
    use_activation: false gives a classification head's own numbers.  None: as the model has it.
    truncate_prompt_tokens: longer inputs are cut to so many; -1: to as many as the model takes;
    None: they are refused.  input_type: query or document, of a model for late interaction; None:
    document.  Raises InvalidRequest, a ValueError."""

    task: PoolingTask | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    input_type: Literal["query", "document"] | None = None

    def __post_init__(self) -> None:
        for name in ("dimensions", "truncate_prompt_tokens"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise InvalidRequest(f"{name} must be a whole number, not {value!r}", param=name)
        for name in ("normalize", "use_activation"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise InvalidRequest(f"{name} must be true or false, not {value!r}", param=name)
        if self.task is not None and self.task not in get_args(PoolingTask):
            raise InvalidRequest(
                f"task is {self.task!r}; allowed are {', '.join(get_args(PoolingTask))}",
                param="task",
            )
        if self.input_type not in (None, "query", "document"):
            raise InvalidRequest(
                f"input_type is {self.input_type!r}; allowed are query, document",
                param="input_type",
            )


def check_input_type(input_type: str | None, pooling: PoolingConfig) -> None:
    """Raises InvalidRequest for a model that reads queries and documents alike."""
    if input_type is not None and pooling.late is None:
        raise InvalidRequest(
            "input_type is for models for late interaction; this model reads queries and documents "
            "alike",
            param="input_type",
            code="unsupported_model",
        )


def check_dimensions(dimensions: int | None, pooling: PoolingConfig) -> None:
    """Raises InvalidRequest for a length that the model's embeddings can't be cut to."""
    if dimensions is None:
        return
    if not 1 <= dimensions <= pooling.size:
        raise InvalidRequest(
            f"dimensions must lie in 1 to {pooling.size}, not {dimensions}", param="dimensions"
        )
    if pooling.dimensions and dimensions not in (*pooling.dimensions, pooling.size):
        allowed = ", ".join(map(str, sorted({*pooling.dimensions, pooling.size})))
        raise InvalidRequest(
            f"dimensions is {dimensions}; this model's embeddings can be cut to {allowed}",
            param="dimensions",
        )


def default_task(tasks: tuple[PoolingTask, ...]) -> PoolingTask:
    """The task of a request that names none, as in vLLM: all of a model for embeddings, the classes
    of a classifier."""
    return "token_embed" if tasks[0] == "embed" and "token_embed" in tasks else tasks[0]
