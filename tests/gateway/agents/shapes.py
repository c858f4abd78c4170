"""Two turns of coding agents and chat programs: what each sends first, and what it sends once its
call has a result. Claude Code 2.1, opencode 1.18, Cline 3.0, Goose's SDK, Open WebUI 0.12 and n8n's
library, LangChain for JavaScript 1.5, were recorded; the others are after their public sources.
Texts are shorter, and our own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.gateway.fake_engine import MODEL

Json = dict[str, Any]

RULES = "You are a coding agent."
REMINDER = "<system-reminder>\nToday's date is 2026-11-26.\n</system-reminder>\n\n"
AGENTS = "Available agent types for the Agent tool:\n- Explore: a search that only reads."
ASKED = "Say hi."
RESULT = "hi\n"
SCHEMA: Json = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"command": {"type": "string"}, "description": {"type": "string"}},
    "required": ["command"],
    "additionalProperties": False,
}
CALLED: Json = {"command": "echo hi"}


@dataclass(frozen=True)
class Agent:
    """turn: the body after the answers and results so far, each an answer's own message and the
    text of its call's result.  shown: the first prompt's messages, as (role, content)."""

    path: str
    tool: str
    turn: Callable[[list[tuple[Json, str]]], Json]
    shown: list[tuple[str, str]]


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def function(name: str, **more: Any) -> Json:
    words = {"name": name, "description": "Runs a command.", "parameters": SCHEMA, **more}
    return {"type": "function", "function": words}


def told(answers: list[tuple[Json, str]], **more: Any) -> list[Json]:
    """Messages of answers and results, in OpenAI's shape."""
    messages = []
    for answer, result in answers:
        call = answer["tool_calls"][0]
        own = {key: call[key] for key in ("id", "type", "function")}
        messages += [
            {"role": "assistant", "content": answer["content"] or "", "tool_calls": [own]},
            {"role": "tool", "tool_call_id": call["id"], "content": result, **more},
        ]
    return messages


def claude_code(answers: list[tuple[Json, str]]) -> Json:
    """Its system prompt's first line is another in each request; a system message stands behind the
    user's first."""
    number = f"{len(answers):05x}"
    tally = f"x-anthropic-billing-header: cc_version=2.1.197.12a; cc_entrypoint=cli; cch={number};"
    messages: list[Json] = [
        {"role": "user", "content": [text(REMINDER), text(ASKED)]},
        {"role": "system", "content": AGENTS},
    ]
    for answer, result in answers:
        id = answer["content"][-1]["id"]
        block = {"type": "tool_result", "tool_use_id": id, "content": result, "is_error": False}
        messages += [
            {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": [{**block, "cache_control": {"type": "ephemeral"}}]},
        ]
    return {
        "model": MODEL,
        "messages": messages,
        "system": [
            text(tally),
            {**text(RULES), "cache_control": {"type": "ephemeral"}},
        ],
        "tools": [{"name": "Bash", "description": "Runs a command.", "input_schema": SCHEMA}],
        "metadata": {"user_id": '{"device_id":"a42729","account_uuid":"","session_id":"3a4e1ed6"}'},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }


def opencode(answers: list[tuple[Json, str]]) -> Json:
    return {
        "model": MODEL,
        "max_tokens": 200,
        "messages": [
            {"role": "system", "content": RULES},
            {"role": "user", "content": ASKED},
            *told(answers),
        ],
        "tools": [function("bash")],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def cline(answers: list[tuple[Json, str]]) -> Json:
    """A turn of the user's has several texts, the last of which says what time it is."""
    details = "<environment_details>\n# Current Time\n26/11/2026, 14:00\n</environment_details>"
    return {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": RULES},
            {"role": "user", "content": [text(f"<task>\n{ASKED}\n</task>"), text(details)]},
            *told(answers),
        ],
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [function("execute_command", strict=False)],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
    }


def without_words(answers: list[tuple[Json, str]]) -> list[Json]:
    """As `told`, with null for the words of an answer that has none."""
    return [{**each, "content": each["content"] or None} for each in told(answers)]


def cline_program(answers: list[tuple[Json, str]]) -> Json:
    """Cline 3.0.65 in a terminal, by its provider openai-compatible."""
    return {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": RULES},
            {"role": "user", "content": ASKED},
            *without_words(answers),
        ],
        "tools": [function("run_commands")],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def goose(answers: list[tuple[Json, str]]) -> Json:
    """Goose's provider for OpenAI's API, of its SDK 0.1.0a13; without /v1 in its address."""
    return {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": RULES},
            {"role": "user", "content": ASKED},
            *without_words(answers),
        ],
        "tools": [function("shell", strict=False)],
        "max_tokens": 200,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def copilot(answers: list[tuple[Json, str]]) -> Json:
    """VS Code's custom endpoint, of the type chat-completions."""
    mark = {"copilot_cache_control": {"type": "ephemeral"}}
    return {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": RULES, **mark},
            {"role": "user", "content": "<context>\nThe date is 2026-11-26.\n</context>"},
            {"role": "user", "content": [text(ASKED)], **mark},
            *told(answers, **mark),
        ],
        "tools": [function("run_in_terminal")],
        "temperature": 0.1,
        "top_p": 1,
        "max_tokens": 200,
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def zed(answers: list[tuple[Json, str]]) -> Json:
    return {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": RULES},
            {"role": "user", "content": [text(ASKED)]},
            *told(answers),
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 200,
        "stop": [],
        "temperature": 1.0,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "tools": [function("terminal")],
        "prompt_cache_key": "01a2180d",
    }


def continue_(answers: list[tuple[Json, str]]) -> Json:
    return {
        "model": MODEL,
        "max_tokens": 200,
        "stream": True,
        "messages": [
            {"role": "system", "content": RULES},
            {"role": "user", "content": [text(ASKED)]},
            *told(answers),
        ],
        "tools": [function("run_terminal_command")],
        "stream_options": {"include_usage": True},
    }


def open_webui(answers: list[tuple[Json, str]]) -> Json:
    """Open WebUI 0.12.4, which offers tools of its own, 36 of them, unless that is switched off."""
    own = [function(f"tool_{number}") for number in range(35)]
    return {
        "stream": True,
        "model": MODEL,
        "messages": [
            {"role": "system", "content": RULES},
            {"role": "user", "content": ASKED},
            *told(answers),
        ],
        "tools": [function("run"), *own],
    }


def n8n(answers: list[tuple[Json, str]]) -> Json:
    """Its chat model asks through Responses; what was said and called comes back without ids."""
    items: list[Json] = [
        {"type": "message", "role": "system", "content": RULES},
        {"type": "message", "role": "user", "content": ASKED},
    ]
    for answer, result in answers:
        call = answer["tool_calls"][0]
        items += [
            {"type": "message", "role": "assistant", "content": answer["content"]},
            {"type": "function_call", "call_id": call["id"], **call["function"]},
            {"type": "function_call_output", "call_id": call["id"], "output": result},
        ]
    tool = {"type": "function", "strict": False, **function("run")["function"]}
    return {
        "input": items,
        "model": MODEL,
        "temperature": 0.7,
        "stream": True,
        "tools": [tool],
        "text": {},
    }


def aider(answers: list[tuple[Json, str]]) -> Json:
    """It has no tools: it reads what is to be done from the text. A reminder comes last."""
    return {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": RULES},
            {"role": "user", "content": "Here are the files."},
            {"role": "assistant", "content": "Ok."},
            {"role": "user", "content": ASKED},
            {"role": "system", "content": "Answer with whole files."},
        ],
        "temperature": 0,
        "stream": True,
    }


PLAIN = [("system", RULES), ("user", ASKED)]
CHAT = "/v1/chat/completions"
TIMED = (
    f"<task>\n{ASKED}\n</task>\n<environment_details>\n# Current Time\n26/11/2026, 14:00\n"
    "</environment_details>"
)
AGENTS_BY_NAME = {
    "Claude Code": Agent(
        "/v1/messages?beta=true",
        "Bash",
        claude_code,
        [("system", RULES), ("user", f"{REMINDER}\n{ASKED}"), ("system", AGENTS)],
    ),
    "opencode": Agent(CHAT, "bash", opencode, PLAIN),
    "Cline": Agent(CHAT, "execute_command", cline, [("system", RULES), ("user", TIMED)]),
    "Cline 3": Agent(CHAT, "run_commands", cline_program, PLAIN),
    "Goose": Agent("/chat/completions", "shell", goose, PLAIN),
    "Copilot": Agent(
        CHAT,
        "run_in_terminal",
        copilot,
        [
            ("system", RULES),
            ("user", "<context>\nThe date is 2026-11-26.\n</context>"),
            ("user", ASKED),
        ],
    ),
    "Zed": Agent(CHAT, "terminal", zed, PLAIN),
    "Continue": Agent(CHAT, "run_terminal_command", continue_, PLAIN),
    "Open WebUI": Agent(CHAT, "run", open_webui, PLAIN),
    "n8n": Agent("/v1/responses", "run", n8n, PLAIN),
    "aider": Agent(
        CHAT,
        "",
        aider,
        [
            ("system", RULES),
            ("user", "Here are the files."),
            ("assistant", "Ok."),
            ("user", ASKED),
            ("system", "Answer with whole files."),
        ],
    ),
}
