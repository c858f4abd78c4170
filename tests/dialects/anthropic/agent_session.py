"""What a command-line coding agent sends in one session: requests as Anthropic's documentation of
messages, tools, prompt caching, thinking and betas has them, with an agent's sizes and habits."""

from __future__ import annotations

from typing import Any

from tests.gateway.fake_engine import MODEL

Json = dict[str, Any]

PATH = "/v1/messages?beta=true"
COUNT = "/v1/messages/count_tokens?beta=true"
HEADERS = {
    "accept": "application/json",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "fine-grained-tool-streaming-2025-05-14,interleaved-thinking-2025-05-14",
    "anthropic-dangerous-direct-browser-access": "true",
    "user-agent": "agent-cli/1.0 (external, cli)",
    "x-api-key": "sk-any",
    "x-app": "cli",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
    "x-stainless-timeout": "600",
}
EPHEMERAL = {"type": "ephemeral"}
RULES = "Work in small steps. Read a file before it is changed. Say what was done.\n"


def tool(name: str, words: str, required: list[str], **properties: Json) -> Json:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {"name": name, "description": words * 20, "input_schema": schema}


TEXT: Json = {"type": "string", "description": "A text."}
TOOLS = [
    tool(
        "Bash",
        "Runs a command in a shell, and returns what it prints. ",
        ["command"],
        command=TEXT,
        timeout={"type": "number", "minimum": 0, "maximum": 600_000},
        run_in_background={"type": "boolean"},
    ),
    tool(
        "Read",
        "Reads a file. ",
        ["file_path"],
        file_path=TEXT,
        offset={"type": "integer", "exclusiveMinimum": 0},
        limit={"type": "integer", "exclusiveMinimum": 0},
    ),
    tool(
        "Edit",
        "Replaces a text in a file. ",
        ["file_path", "old_string", "new_string"],
        file_path=TEXT,
        old_string=TEXT,
        new_string=TEXT,
        replace_all={"type": "boolean", "default": False},
    ),
    tool(
        "TodoWrite",
        "Keeps a list of what is to be done. ",
        ["todos"],
        todos={
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "content": {"type": "string", "minLength": 1},
                    "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                },
                "required": ["content", "status"],
                "additionalProperties": False,
            },
        },
    ),
]
SYSTEM = [
    {"type": "text", "text": "You are a coding agent.", "cache_control": EPHEMERAL},
    {"type": "text", "text": RULES * 60, "cache_control": {**EPHEMERAL, "ttl": "1h"}},
]


def warm_up() -> Json:
    """Whether there is an answer at all."""
    return {
        "model": MODEL,
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "quota"}],
        "metadata": {"user_id": "user_1_account__session_2"},
    }


def title(question: str) -> Json:
    """The title that a small model gives, of the conversation's beginning."""
    return {
        "model": MODEL,
        "max_tokens": 512,
        "stream": True,
        "temperature": 0,
        "system": [{"type": "text", "text": "Say in three words what this is about."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": question}]}],
        "metadata": {"user_id": "user_1_account__session_2"},
    }


def turn(messages: list[Json], **more: Any) -> Json:
    """A turn of the agent: all that was said, its last block being where the cache may end."""
    *before, last = messages
    content = [dict(block) for block in last["content"]]
    content[-1]["cache_control"] = EPHEMERAL
    return {
        "model": MODEL,
        "max_tokens": 32_000,
        "stream": True,
        "temperature": 1,
        "system": SYSTEM,
        "tools": TOOLS,
        "messages": [*before, {**last, "content": content}],
        "thinking": {"type": "enabled", "budget_tokens": 31_999},
        "metadata": {"user_id": "user_1_account__session_2"},
        **more,
    }


def asked(question: str) -> Json:
    reminder = "<system-reminder>\nToday's date is 2026-11-23.\n</system-reminder>"
    return {
        "role": "user",
        "content": [{"type": "text", "text": reminder}, {"type": "text", "text": question}],
    }


def results(*blocks: Json) -> Json:
    return {"role": "user", "content": list(blocks)}


def result(call: Json, content: Any, *, is_error: bool = False) -> Json:
    block = {"type": "tool_result", "tool_use_id": call["id"], "content": content}
    return {**block, "is_error": True} if is_error else block
