"""Bodies of requests that generate text, by name."""

from __future__ import annotations

from typing import Any

PROMPT = "The capital of France is"
LIST = "1, 2, 3, 4,"
GREEDY: dict[str, Any] = {"temperature": 0}
SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 7}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 10},
        "size": {"enum": ["small", "large"]},
        "ports": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 9},
            "maxItems": 2,
        },
    },
    "required": ["city", "size", "ports"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
GRAMMAR = 'start: "<" /[a-z]{3,8}/ ">"'


def _sampling() -> dict[str, dict[str, Any]]:
    """Fields that completions and chat share."""
    return {
        "greedy": {**GREEDY},
        "greedy, 1 token": {**GREEDY, "max_tokens": 1},
        "greedy, longer": {**GREEDY, "max_tokens": 48},
        "seeded": {**SEEDED},
        "seeded, hot": {"temperature": 1.7, "seed": 11},
        "seeded, top_p": {**SEEDED, "top_p": 0.8},
        "seeded, top_k": {**SEEDED, "top_k": 5},
        "seeded, min_p": {**SEEDED, "min_p": 0.1},
        "seeded, all filters": {**SEEDED, "top_p": 0.9, "top_k": 30, "min_p": 0.02},
        "seeded, large seed": {"temperature": 1.0, "seed": 2**53 - 1},
        "presence penalty": {**GREEDY, "presence_penalty": 1.5, "max_tokens": 24},
        "frequency penalty": {**GREEDY, "frequency_penalty": 1.2, "max_tokens": 24},
        "repetition penalty": {**GREEDY, "repetition_penalty": 1.4, "max_tokens": 24},
        "all penalties, seeded": {
            **SEEDED,
            "presence_penalty": -0.5,
            "frequency_penalty": 0.7,
            "repetition_penalty": 1.1,
        },
        "logit bias": {**GREEDY, "logit_bias": {"260": 20, "7042": -100}},
        "allowed ids": {**SEEDED, "allowed_token_ids": [30, 216, 33, 260, 28, 32]},
        "bad words": {**GREEDY, "bad_words": ["Paris", "the"]},
        "stop string": {**GREEDY, "stop": ["\n", ", 7", "."], "max_tokens": 32},
        "stop string, included": {
            **GREEDY,
            "stop": [".", ","],
            "include_stop_str_in_output": True,
            "max_tokens": 32,
        },
        "stop id": {**GREEDY, "stop_token_ids": [30, 28], "max_tokens": 32},
        "least tokens": {**GREEDY, "min_tokens": 12, "stop": ["."], "max_tokens": 24},
        "no end": {**SEEDED, "ignore_eos": True, "max_tokens": 24},
        "n": {**SEEDED, "n": 3, "max_tokens": 8},
        "n, greedy": {**GREEDY, "n": 2, "max_tokens": 8},
        "best_of": {**SEEDED, "n": 2, "best_of": 4, "max_tokens": 8},
        "beam search": {"use_beam_search": True, "n": 3, "temperature": 0, "max_tokens": 8},
        "beam search, penalty": {
            "use_beam_search": True,
            "n": 4,
            "temperature": 0,
            "length_penalty": 0.3,
            "max_tokens": 6,
        },
        "regex": {**SEEDED, "structured_outputs": {"regex": r"(19|20)\d\d-[01]\d-[0-3]\d"}},
        "choice": {**GREEDY, "structured_outputs": {"choice": ["Paris", "London", "Rome"]}},
        "grammar": {**SEEDED, "structured_outputs": {"grammar": GRAMMAR}},
        "JSON object": {**SEEDED, "response_format": {"type": "json_object"}, "max_tokens": 40},
        "JSON schema": {**SEEDED, "response_format": JSON_SCHEMA, "max_tokens": 60},
        "JSON schema, n": {**SEEDED, "response_format": JSON_SCHEMA, "max_tokens": 40, "n": 2},
        "guided regex": {**GREEDY, "guided_regex": "[a-f]{4}"},
        "token ids": {**GREEDY, "return_token_ids": True},
        "truncated": {**GREEDY, "truncate_prompt_tokens": 4},
    }


def completions() -> dict[str, dict[str, Any]]:
    shared = {name: {"prompt": PROMPT, **fields} for name, fields in _sampling().items()}
    shared["stop string"]["prompt"] = LIST
    return {
        **shared,
        "log-probabilities": {"prompt": PROMPT, **GREEDY, "logprobs": 3},
        "log-probabilities, seeded, biased": {
            "prompt": LIST,
            **SEEDED,
            "logprobs": 2,
            "top_p": 0.7,
            "logit_bias": {"28": -3},
        },
        "log-probabilities as ids": {
            "prompt": PROMPT,
            **GREEDY,
            "logprobs": 1,
            "return_tokens_as_token_ids": True,
            "max_tokens": 6,
        },
        "log-probabilities of the prompt": {
            "prompt": PROMPT,
            **GREEDY,
            "prompt_logprobs": 2,
            "max_tokens": 4,
        },
        "echo": {"prompt": PROMPT, **GREEDY, "echo": True},
        "echo, log-probabilities": {
            "prompt": PROMPT,
            **GREEDY,
            "echo": True,
            "logprobs": 2,
            "max_tokens": 4,
        },
        "several prompts": {"prompt": [PROMPT, LIST, "Once"], **GREEDY, "max_tokens": 8},
        "several prompts, n": {"prompt": [PROMPT, LIST], **SEEDED, "n": 2, "max_tokens": 6},
        "ids": {"prompt": [504, 3575, 282, 4649, 314], **GREEDY},
        "several lists of ids": {"prompt": [[504, 3575], [33, 28, 216]], **SEEDED},
        "many scripts": {"prompt": "Grüße, 你好, שלום, 🙂🙃 —", **GREEDY, "max_tokens": 24},
        "long prompt": {"prompt": "A harbour at night. " * 60, **GREEDY},
        "special tokens": {
            "prompt": "<|im_start|>user\nHi<|im_end|>\n",
            "parse_special": True,
            "skip_special_tokens": False,
            **GREEDY,
        },
    }


MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 12},
                    "unit": {"enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city", "unit"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"enum": [1, 2, 3]}, "b": {"type": "boolean"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    },
]
ARGUMENTS = '{"a": 1, "b": true}'
CALL = {
    "role": "assistant",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "add", "arguments": '{"a": 1, "b": true}'},
        }
    ],
}


def chats() -> dict[str, dict[str, Any]]:
    named = {"type": "function", "function": {"name": "get_weather"}}
    return {
        **{name: {"messages": MESSAGES, **fields} for name, fields in _sampling().items()},
        "log-probabilities": {"messages": MESSAGES, **GREEDY, "logprobs": True, "top_logprobs": 3},
        "log-probabilities, seeded": {"messages": MESSAGES, **SEEDED, "logprobs": True},
        "no system message": {"messages": MESSAGES[1:], **GREEDY},
        "parts": {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Say"},
                        {"type": "text", "text": " hello."},
                    ],
                }
            ],
            **GREEDY,
        },
        "continued": {
            "messages": [*MESSAGES, {"role": "assistant", "content": "The capital is"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
            **GREEDY,
        },
        "several turns": {
            "messages": [
                *MESSAGES,
                {"role": "assistant", "content": "Paris."},
                {"role": "user", "content": "And of Italy?"},
            ],
            **GREEDY,
        },
        "tools, auto": {"messages": MESSAGES, "tools": TOOLS, **GREEDY},
        "tools, required": {
            "messages": MESSAGES,
            "tools": TOOLS,
            "tool_choice": "required",
            **SEEDED,
            "max_tokens": 64,
        },
        "tools, required, one": {
            "messages": MESSAGES,
            "tools": TOOLS,
            "tool_choice": "required",
            "parallel_tool_calls": False,
            **GREEDY,
            "max_tokens": 64,
        },
        "tools, named": {
            "messages": MESSAGES,
            "tools": TOOLS,
            "tool_choice": named,
            **SEEDED,
            "max_tokens": 64,
        },
        "tools, none": {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "none", **GREEDY},
        "tools, result": {
            "messages": [
                *MESSAGES,
                CALL,
                {"role": "tool", "tool_call_id": "call_1", "content": "4"},
            ],
            "tools": TOOLS,
            **GREEDY,
        },
        "max_completion_tokens": {
            "messages": MESSAGES,
            **GREEDY,
            "max_tokens": 9,
            "max_completion_tokens": 9,
        },
    }


def responses() -> dict[str, dict[str, Any]]:
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
    question = "What is the capital of France?"
    text = {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA}}
    return {
        "greedy": {"input": question, **GREEDY},
        "seeded": {"input": question, **SEEDED, "top_p": 0.9},
        "instructions": {"input": question, "instructions": "Answer in one word.", **GREEDY},
        "items": {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Say hello."}]},
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": "Again."},
            ],
            **GREEDY,
        },
        "log-probabilities": {
            "input": question,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
            **GREEDY,
        },
        "JSON schema": {"input": question, "text": text, **SEEDED, "max_output_tokens": 60},
        "stop string": {"input": question, "stop": ["."], **GREEDY, "max_output_tokens": 32},
        "penalties": {
            "input": question,
            **GREEDY,
            "presence_penalty": 1.0,
            "frequency_penalty": 0.5,
        },
        "tools, required": {
            "input": question,
            "tools": flat,
            "tool_choice": "required",
            **SEEDED,
            "max_output_tokens": 64,
        },
        "tools, named": {
            "input": question,
            "tools": flat,
            "tool_choice": {"type": "function", "name": "add"},
            **GREEDY,
            "max_output_tokens": 64,
        },
        "tools, result": {
            "input": [
                {"role": "user", "content": question},
                {
                    "type": "function_call",
                    "call_id": "call_1",
                    "name": "add",
                    "arguments": '{"a": 1, "b": true}',
                },
                {"type": "function_call_output", "call_id": "call_1", "output": "4"},
            ],
            "tools": flat,
            **GREEDY,
        },
        "metadata": {"input": question, **GREEDY, "metadata": {"a": "b"}, "store": False},
    }
