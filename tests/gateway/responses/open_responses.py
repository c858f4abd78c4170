"""What the Open Responses specification (https://www.openresponses.org) says of a response and of
its events, as JSON schemas: as of 2026-04-24, and for what a server like this one can send."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

TEXT: dict[str, Any] = {"type": "string"}
WHOLE: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
YES: dict[str, Any] = {"type": "boolean"}
STATUS = {"enum": ["in_progress", "completed", "incomplete"]}
CHOICE = {"enum": ["none", "auto", "required"]}


def an(optional: dict[str, Any] | None = None, /, **fields: Any) -> dict[str, Any]:
    """An object that has these fields, and may have those."""
    return {
        "type": "object",
        "required": list(fields),
        "properties": fields | (optional or {}),
    }


def const(value: str) -> dict[str, Any]:
    return {"const": value}


def maybe(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def many(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


LIKELY = an(token=TEXT, logprob=NUMBER, bytes=many(WHOLE))
LOGPROB = an(token=TEXT, logprob=NUMBER, bytes=many(WHOLE), top_logprobs=many(LIKELY))
PART = {
    "oneOf": [
        an(
            type=const("output_text"),
            text=TEXT,
            annotations={"type": "array"},
            logprobs=many(LOGPROB),
        ),
        an(type=const("reasoning_text"), text=TEXT),
    ]
}
PHASE = {"phase": {"enum": ["commentary", "final_answer"]}}
MESSAGE = an(
    PHASE,
    type=const("message"),
    id=TEXT,
    status=STATUS,
    role=const("assistant"),
    content=many(PART),
)
CALL = an(
    type=const("function_call"), id=TEXT, call_id=TEXT, name=TEXT, arguments=TEXT, status=STATUS
)
THOUGHTS = an({"content": many(PART)}, type=const("reasoning"), id=TEXT, summary=many(PART))
ITEM = {"oneOf": [MESSAGE, CALL, THOUGHTS]}
FUNCTION = an(
    type=const("function"),
    name=TEXT,
    description=maybe(TEXT),
    parameters=maybe({"type": "object"}),
    strict=maybe(YES),
)
FUNCTION_CHOICE = an({"name": TEXT}, type=const("function"))
FORMAT = {
    "oneOf": [
        an(type=const("text")),
        an(type=const("json_object")),
        an(type=const("json_schema"), name=TEXT, description=maybe(TEXT), schema={}, strict=YES),
    ]
}
USAGE = an(
    input_tokens=WHOLE,
    output_tokens=WHOLE,
    total_tokens=WHOLE,
    input_tokens_details=an(cached_tokens=WHOLE),
    output_tokens_details=an(reasoning_tokens=WHOLE),
)
RESPONSE = an(
    id=TEXT,
    object=const("response"),
    created_at=WHOLE,
    completed_at=maybe(WHOLE),
    status=TEXT,
    incomplete_details=maybe(an(reason=TEXT)),
    model=TEXT,
    previous_response_id=maybe(TEXT),
    instructions=maybe(TEXT),
    output=many(ITEM),
    error=maybe(an(code=TEXT, message=TEXT)),
    tools=many(FUNCTION),
    tool_choice={
        "oneOf": [
            FUNCTION_CHOICE,
            CHOICE,
            an(type=const("allowed_tools"), tools=many(FUNCTION_CHOICE), mode=CHOICE),
        ]
    },
    truncation={"enum": ["auto", "disabled"]},
    parallel_tool_calls=YES,
    text=an({"verbosity": {"enum": ["low", "medium", "high"]}}, format=FORMAT),
    top_p=NUMBER,
    presence_penalty=NUMBER,
    frequency_penalty=NUMBER,
    top_logprobs=WHOLE,
    temperature=NUMBER,
    reasoning=maybe(an(effort=maybe(TEXT), summary=maybe(TEXT))),
    usage=maybe(USAGE),
    max_output_tokens=maybe(WHOLE),
    max_tool_calls=maybe(WHOLE),
    store=YES,
    background=YES,
    service_tier=TEXT,
    metadata={},
    safety_identifier=maybe(TEXT),
    prompt_cache_key=maybe(TEXT),
)

_IN_ITEM = {"item_id": TEXT, "output_index": WHOLE}
_IN_PART = {**_IN_ITEM, "content_index": WHOLE}
_OF_RESPONSE = {"response": RESPONSE}
_OF_ITEM = {"output_index": WHOLE, "item": maybe(ITEM)}
EVENTS: dict[str, dict[str, Any]] = {
    "response.created": _OF_RESPONSE,
    "response.queued": _OF_RESPONSE,
    "response.in_progress": _OF_RESPONSE,
    "response.completed": _OF_RESPONSE,
    "response.failed": _OF_RESPONSE,
    "response.incomplete": _OF_RESPONSE,
    "response.output_item.added": _OF_ITEM,
    "response.output_item.done": _OF_ITEM,
    "response.content_part.added": {**_IN_PART, "part": PART},
    "response.content_part.done": {**_IN_PART, "part": PART},
    "response.output_text.delta": {**_IN_PART, "delta": TEXT, "logprobs": many(LOGPROB)},
    "response.output_text.done": {**_IN_PART, "text": TEXT, "logprobs": many(LOGPROB)},
    # OpenAI's names, and those of the specification's OpenAPI document; its TypeSpec leaves _text
    # out.
    "response.reasoning_text.delta": {**_IN_PART, "delta": TEXT},
    "response.reasoning_text.done": {**_IN_PART, "text": TEXT},
    "response.function_call_arguments.delta": {**_IN_ITEM, "delta": TEXT},
    "response.function_call_arguments.done": {**_IN_ITEM, "arguments": TEXT},
    "error": {"error": an(type=TEXT, code=maybe(TEXT), message=TEXT, param=maybe(TEXT))},
}


def check_response(response: Any) -> None:
    """Raises ValidationError."""
    Draft202012Validator(RESPONSE).validate(response)


def check_event(event: Any) -> None:
    """Raises ValidationError."""
    name = event["type"]
    schema = an(type=const(name), sequence_number=WHOLE, **EVENTS[name])
    Draft202012Validator(schema).validate(event)
