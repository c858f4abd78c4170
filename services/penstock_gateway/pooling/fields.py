"""Request fields that the pooling endpoints share, and the `input` of a body: one text or many, as
texts or as token ids. Names are OpenAI's, then vLLM's."""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec

from penstock.client.pooling_inputs import Side
from penstock.errors import InvalidRequest
from penstock_gateway.pooling.messages import PoolMessage
from penstock_gateway.request.input_texts import check_count

Number = float | None
Whole = int | None
Flag = bool | None
Text = str | None
EmbedDtype = Literal["float32", "float16", "bfloat16"]

MAX_NUMBERS = 1 << 24
"""Numbers of tokens' vectors, float32, in one reply, and in memory at once where texts are compared
token by token."""


class PoolFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """truncate_prompt_tokens: longer inputs are cut to so many tokens; -1: to as many as the model
    takes; absent: they are refused.  truncation_side: where they are cut; absent: texts right,
    token ids left.  priority, deadline_ms, cache_salt: as in completions.
    mm_processor_kwargs: how the request's pictures are prepared."""

    model: Text = None
    truncate_prompt_tokens: Whole = None
    truncation_side: Side | None = None
    request_id: Text = None
    priority: Whole = None
    deadline_ms: Whole = None
    cache_salt: Text = None

    mm_processor_kwargs: dict[str, Any] | None = None

    # Without effect on the output.
    user: Text = None
    metadata: dict[str, Any] | None = None


class VectorFields(PoolFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """messages: an input as chats have it, in place of `input`: a text, or one picture, of a model
    that makes vectors of both; a conversation with pictures, of a decoder that sees.
    add_generation_prompt: whether the template opens an answer after that.
    continue_final_message: the last message stays open.  chat_template_kwargs: more for the
    template.  encoding_format: bytes is the vectors alone, one after the other, and where each is
    in the header `metadata`; bytes_only lacks that.  embed_dtype, endianness: of base64 and bytes.
    dimensions: numbers kept of each vector.  normalize, use_activation: to length 1, after that, or
    of a classification head its activation; absent: as the model has it."""

    messages: list[PoolMessage] | None = None
    add_generation_prompt: Flag = None
    continue_final_message: Flag = None
    chat_template: Text = None
    chat_template_kwargs: dict[str, Any] | None = None
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] | None = None
    dimensions: Whole = None
    normalize: Flag = None
    use_activation: Flag = None
    add_special_tokens: Flag = None
    embed_dtype: EmbedDtype | None = None
    endianness: Literal["native", "little", "big"] | None = None

    @property
    def activates(self) -> bool | None:
        """What normalize and use_activation say. Raises InvalidRequest where they differ."""
        if None not in (self.normalize, self.use_activation) and (
            self.normalize != self.use_activation
        ):
            raise InvalidRequest(
                "normalize and use_activation mean the same here, and differ: set only one of them",
                param="normalize",
            )
        return self.use_activation if self.normalize is None else self.normalize


class PoolUsage(msgspec.Struct, frozen=True):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


Given = str | list[int]
InputField = str | list[str | int | list[int]] | None


def inputs_of(value: InputField) -> list[Given]:
    """The inputs in order, none empty. Raises InvalidRequest."""
    given = _as_list(value)
    check_count("input", len(given))
    for position, each in enumerate(given):
        if not each:
            which = f"input[{position}]" if len(given) > 1 else "input"
            raise InvalidRequest(f"{which} is empty", param="input")
    return given


def check_numbers(tokens: int, size: int) -> None:
    """Raises InvalidRequest for more numbers than a reply may have. size: of the vector that each
    of the inputs' tokens has."""
    if tokens * size > MAX_NUMBERS:
        raise InvalidRequest(
            f"the input's {tokens} tokens have vectors of {size} numbers each; at most "
            f"{MAX_NUMBERS} numbers are given in one reply, which is {MAX_NUMBERS // size} tokens",
            param="input",
        )


def _as_list(value: InputField) -> list[Given]:
    if value is None:
        raise InvalidRequest("input is missing", param="input", code="missing_required_parameter")
    if isinstance(value, str):
        return [value]
    kinds = {type(element) for element in value}
    if len(kinds) > 1 and int in kinds:
        raise InvalidRequest(
            "input mixes types; it must be a string, a list of token ids, or a list of strings and "
            "of lists of token ids",
            param="input",
            code="invalid_type",
        )
    if kinds == {int}:
        return [cast("list[int]", value)]
    return cast("list[Given]", value)
