"""What a body must say beside a field, so that the field is looked at: a message that holds calls
is the assistant's, and so on."""

from __future__ import annotations

from typing import Any

_USER = [{"role": "user", "content": "a"}]

SAMPLES: dict[str, dict[str, Any]] = {
    "Message": {"role": "user", "content": "a"},
    "ContentPart": {"type": "text", "text": "a"},
    "MessageToolCall": {
        "id": {"$id": "c"},
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
    },
    "MessageFunction": {"name": "f", "arguments": "{}"},
    "Tool": {"type": "function", "function": {"name": {"$id": "f"}}},
    "FunctionDefinition": {"name": {"$id": "f"}},
    "InputMessage": {"role": "user", "content": "a"},
    "ContentBlock": {"type": "text", "text": "a"},
    "ShownBlock": {"type": "text", "text": "a"},
    "FoundText": {"type": "text", "text": "a"},
    "InputTool": {"name": {"$id": "f"}, "input_schema": {"type": "object"}},
    "InputItem": {"role": "user", "content": "a"},
    "InputPart": {"type": "input_text", "text": "a"},
    "PoolMessage": {"role": "user", "content": "a"},
    "PoolPart": {"type": "text", "text": "a"},
    "PromptText": {"prompt_string": "a"},
    "PredictionPart": {"type": "text", "text": "a"},
    "OtherFile": {"text": "a", "filename": "a.py"},
    "ResponseFormat": {"type": "json_object"},
    "JsonSchemaFormat": {"name": "a", "schema": {"type": "object"}},
    "AllowedTool": {"type": "function", "function": {"name": "f"}},
    "MessageOfBatch": {
        "custom_id": {"$id": "c"},
        "params": {"max_tokens": 1, "messages": _USER},
    },
    "ChatMessage": {"role": "user", "content": "a"},
    "MessageCall": {"function": {"name": "f", "arguments": {}}},
    "CalledTool": {"name": "f", "arguments": {}},
    "InputItem.summary": {"type": "summary_text", "text": "a"},
    "InputItem.output": {"type": "input_text", "text": "a"},
    "MediaContent": {"type": "text", "media_type": "text/plain", "data": "a"},
}
"""A value of each struct that means something; where it depends on the field that holds it, by
struct and field."""

COMPANIONS: dict[str, dict[str, dict[str, Any]]] = {
    "Message": {
        "tool_calls": {"role": "assistant"},
        "function_call": {"role": "assistant"},
        "reasoning": {"role": "assistant"},
        "reasoning_content": {"role": "assistant"},
        "refusal": {"role": "assistant"},
        "tool_call_id": {"role": "tool"},
    },
    "ContentPart": {
        "refusal": {"type": "refusal"},
        "thinking": {"type": "thinking"},
        "image_url": {"type": "image_url"},
        "audio_url": {"type": "audio_url"},
        "video_url": {"type": "video_url"},
        "input_audio": {"type": "input_audio"},
        "file": {"type": "file"},
    },
    "MessageToolCall": {"custom": {"type": "custom", "function": None}},
    "ChatMessage": {
        "tool_calls": {"role": "assistant"},
        "thinking": {"role": "assistant"},
        "tool_name": {"role": "tool"},
        "tool_call_id": {"role": "tool"},
    },
    "Tool": {"custom": {"type": "custom", "function": None}},
    "ContentBlock": {
        "thinking": {"type": "thinking", "signature": "a"},
        "name": {"type": "tool_use", "id": {"$id": "c"}, "input": {}},
        "input": {"type": "tool_use", "id": {"$id": "c"}, "name": "f"},
        "content": {"type": "tool_result", "tool_use_id": {"$id": "c"}},
        "source": {"type": "document"},
        "tool_name": {"type": "tool_reference"},
    },
    "ShownBlock": {
        "content": {"type": "search_result", "source": "a", "title": "a"},
        "source": {"type": "document"},
        "tool_name": {"type": "tool_reference"},
    },
    "InputMessage": {name: {"role": "assistant"} for name in ("thinking", "input", "name")},
    "InputItem": {
        "arguments": {"type": "function_call", "call_id": {"$id": "c"}, "name": "f"},
        "name": {"type": "function_call", "call_id": {"$id": "c"}, "arguments": "{}"},
        "output": {"type": "function_call_output", "call_id": {"$id": "c"}},
        "summary": {"type": "reasoning", "id": {"$id": "r"}},
        "encrypted_content": {"type": "reasoning", "id": {"$id": "r"}, "summary": []},
        "input": {"type": "custom_tool_call", "call_id": {"$id": "c"}, "name": "f"},
        "action": {"type": "shell_call", "call_id": {"$id": "c"}},
        "operation": {"type": "apply_patch_call", "call_id": {"$id": "c"}},
    },
    "InputPart": {
        "refusal": {"type": "refusal"},
        "image_url": {"type": "input_image"},
        "input_audio": {"type": "input_audio"},
        "file_data": {"type": "input_file", "filename": "a.txt"},
    },
    "PoolPart": {"image_url": {"type": "image_url"}},
    "ResponseFormat": {
        "json_schema": {"type": "json_schema"},
        "structures": {"type": "structural_tag", "triggers": ["<"]},
        "triggers": {
            "type": "structural_tag",
            "structures": [{"begin": "<", "schema": {}, "end": ">"}],
        },
        "format": {"type": "structural_tag"},
    },
    "TextFormat": {
        "schema": {"type": "json_schema", "name": "a"},
    },
    "OutputFormat": {"schema": {"type": "json_schema"}},
    "ChatRequest": {
        "top_logprobs": {"logprobs": True},
        "logprob_token_ids": {"logprobs": True},
        "logprobs": {"top_logprobs": 20},
        "use_beam_search": {"n": 8},
        "stream_options": {"stream": True},
    },
    "CompletionRequest": {
        "best_of": {"logprobs": 1},
        "use_beam_search": {"n": 8},
        "logprob_token_ids": {"logprobs": 1},
        "echo": {"logprobs": 5},
        "stream_options": {"stream": True},
    },
    "ResponsesRequest": {"top_logprobs": {"include": ["message.output_text.logprobs"]}},
    "OllamaChatRequest": {"top_logprobs": {"logprobs": True}},
    "OllamaGenerateRequest": {"top_logprobs": {"logprobs": True}},
    "ScoreRequest": {
        name: {"-": ("text_1", "text_2"), other: "a"}
        for name, other in (
            ("queries", "documents"),
            ("documents", "queries"),
            ("items", "queries"),
            ("data_1", "data_2"),
            ("data_2", "data_1"),
        )
    },
    "RerankRequest": {"texts": {"-": ("documents", "top_n")}, "documents": {"-": ("top_n",)}},
    "EmbeddingRequest": {"messages": {"-": ("input",)}},
    "PoolingRequest": {"messages": {"-": ("input",)}},
    "CohereEmbedRequest": {
        "inputs": {"-": ("texts",)},
        "images": {"-": ("texts",)},
    },
    "LlamaEmbeddingRequest": {"input": {"-": ("content",)}},
    "TokenizeRequest": {
        "messages": {"-": ("prompt",)},
        "content": {"-": ("prompt",)},
        "tools": {"-": ("prompt",), "messages": _USER},
        "chat_template_kwargs": {"-": ("prompt",), "messages": _USER},
        "chat_template": {"-": ("prompt",), "messages": _USER},
    },
    "InfillRequest": {"input_extra": {"input_suffix": "a"}},
}
"""By struct and field. "-": fields of the example that stand in the way."""


def sample(struct: str, owner: str = "") -> dict[str, Any]:
    """A struct's value. owner: struct and field that hold it."""
    return SAMPLES.get(owner) or SAMPLES.get(struct, {})


def companions(struct: str, fields: set[str]) -> dict[str, Any]:
    """What stands beside these fields."""
    found: dict[str, Any] = {}
    for name in sorted(fields):
        for key, value in COMPANIONS.get(struct, {}).get(name, {}).items():
            found[key] = (*found.get("-", ()), *value) if key == "-" else value
    return found
