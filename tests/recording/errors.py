"""Requests that are refused."""

from __future__ import annotations

from typing import Any

from tests.recording.case import GENERATE, Case
from tests.recording.generating import MESSAGES, TOOLS

IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


def errors() -> list[Case]:
    wrong: dict[str, Any] = {
        "no body": b"",
        "no JSON": b"{'a': 1}",
        "not an object": [1],
        "no prompt": {},
        "empty prompt": {"prompt": ""},
        "unknown field": {"prompt": "a", "temprature": 1},
        "wrong type": {"prompt": "a", "max_tokens": "many"},
        "wrong model": {"prompt": "a", "model": "gpt-5"},
        "temperature": {"prompt": "a", "temperature": -1},
        "top_p": {"prompt": "a", "top_p": 1.5},
        "top_k": {"prompt": "a", "top_k": -7},
        "n": {"prompt": "a", "n": 0},
        "best_of": {"prompt": "a", "n": 3, "best_of": 2},
        "best_of, streamed": {"prompt": "a", "best_of": 2, "stream": True},
        "beam, streamed": {"prompt": "a", "use_beam_search": True, "n": 2, "stream": True},
        "prompt log-probabilities, streamed": {"prompt": "a", "prompt_logprobs": 1, "stream": True},
        "logprobs": {"prompt": "a", "logprobs": 99},
        "logit_bias": {"prompt": "a", "logit_bias": {"x": 1}},
        "logit_bias beyond": {"prompt": "a", "logit_bias": {"999999": 1}},
        "stop": {"prompt": "a", "stop": [""]},
        "ids beyond": {"prompt": [999999]},
        "too long": {"prompt": "a", "max_tokens": 100000},
        "regex": {"prompt": "a", "structured_outputs": {"regex": "(a"}},
        "schema": {"prompt": "a", "guided_json": {"type": "thing"}},
        "two structures": {"prompt": "a", "guided_regex": "a", "guided_choice": ["a"]},
        "suffix": {"prompt": "a", "suffix": "b"},
        "min over max": {"prompt": "a", "min_tokens": 9, "max_tokens": 3},
    }
    chats: dict[str, Any] = {
        "no messages": {"messages": []},
        "role": {"messages": [{"role": "robot", "content": "a"}]},
        "image": {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
            ]
        },
        "top_logprobs": {"messages": MESSAGES, "top_logprobs": 2},
        "tool without name": {
            "messages": MESSAGES,
            "tools": [{"type": "function", "function": {}}],
        },
        "unknown tool": {
            "messages": MESSAGES,
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "fly"}},
        },
        "functions": {"messages": MESSAGES, "functions": [{"name": "a"}]},
        "template": {"messages": MESSAGES, "chat_template": "{{ messages }}"},
        "effort": {"messages": MESSAGES, "reasoning_effort": "heroic"},
    }
    responses: dict[str, Any] = {
        "no input": {},
        "previous": {"input": "a", "previous_response_id": "resp_1"},
        "tool of another kind": {"input": "a", "tools": [{"type": "hats"}]},
    }
    paths: dict[str, tuple[str, Any]] = {
        "no such path": ("/v1/nothing", {"a": 1}),
        "wrong method": ("/v1/completions", None),
        "no such model": ("/v1/models/none", None),
        "tokenize both": ("/tokenize", {"prompt": "a", "messages": MESSAGES}),
        "detokenize beyond": ("/detokenize", {"tokens": [999999]}),
    }
    return [
        *_wrong("completion", "/v1/completions", wrong),
        *_wrong("chat", "/v1/chat/completions", chats),
        *_wrong("response", "/v1/responses", responses),
        *(
            Case(f"error: {name}", GENERATE, path, body, False)
            for name, (path, body) in paths.items()
        ),
    ]


def _wrong(kind: str, path: str, bodies: dict[str, Any]) -> list[Case]:
    return [
        Case(f"error in a {kind}: {name}", GENERATE, path, body, False)
        for name, body in bodies.items()
    ]
