"""What Codex 0.171 sends to a Responses API of one's own, in the shapes that were recorded between
it and a server that noted them; descriptions are shorter, and the values our own."""

from __future__ import annotations

from typing import Any

from tests.gateway.fake_engine import MODEL

Json = dict[str, Any]

SESSION = "01a2180d-dcef-73c1-b8ac-e5a1b818648d"
TURN = "01a2180d-dd03-7a10-bec0-df4b7a420f18"
RULES = "You are a coding agent.\nBe precise."
SKILLS = "<skills_instructions>\nNone so far.\n</skills_instructions>"
PLACE = "<environment_context>\n  <cwd>/work</cwd>\n  <shell>bash</shell>\n</environment_context>"


def function(name: str, words: str, **properties: Json) -> Json:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [next(iter(properties))] if properties else [],
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "name": name,
        "description": words,
        "strict": False,
        "parameters": parameters,
    }


TEXT: Json = {"type": "string", "description": "A text."}
EXEC = function("exec_command", "Runs a command.", cmd=TEXT, yield_time_ms={"type": "number"})
AGENTS = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Agents that work under this one.",
    "tools": [
        function("close_agent", "Ends an agent.", target=TEXT),
        function("spawn_agent", "Starts an agent.", message=TEXT, fork_context={"type": "boolean"}),
    ],
}
MCP = {
    "type": "namespace",
    "name": "mcp__files",
    "description": "Tools of the server files.",
    "tools": [function("read", "Reads a file.", path=TEXT)],
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files; the patch is not JSON.",
    "format": {
        "type": "grammar",
        "syntax": "lark",
        "definition": 'start: "*** Begin Patch" LF hunk+ "*** End Patch"\nhunk: /.+/ LF',
    },
}
SEARCH = {"type": "web_search", "external_web_access": False}
TOOLS = [EXEC, function("update_plan", "Notes a plan.", plan=TEXT), AGENTS, MCP, PATCH, SEARCH]


def said(role: str, *texts: str) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text} for text in texts]
    return {"type": "message", "id": f"msg_{len(texts[0])}", "role": role, "content": content}


def beginning(question: str) -> list[Json]:
    """Its rules are a developer's message of their own, and so is what it can do."""
    return [
        said("developer", RULES),
        said("developer", SKILLS),
        said("user", PLACE),
        said("user", question),
    ]


def turn(items: list[Json], **more: Any) -> Json:
    return {
        "model": MODEL,
        "stream": True,
        "input": items,
        "tools": TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": SESSION,
        "client_metadata": {
            "session_id": SESSION,
            "thread_id": SESSION,
            "turn_id": TURN,
            "x-codex-window-id": f"{SESSION}:0",
            "x-codex-turn-metadata": '{"request_kind":"turn","sandbox":"seccomp"}',
        },
        **more,
    }


def output(call: Json, text: str) -> Json:
    """The result of a call, as Codex sends it back."""
    kind = call["type"].replace("_call", "_call_output")
    return {"type": kind, "id": "fco_1", "call_id": call["call_id"], "output": text}


def sent_back(item: Json) -> Json:
    """An item of an answer, as Codex sends it back."""
    if item["type"] != "reasoning":
        return item
    own = {key: item[key] for key in ("type", "id", "summary", "content")}
    return {**own, "encrypted_content": None}
