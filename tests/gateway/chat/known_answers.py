"""Answers of this server, and of others, with what they say."""

from __future__ import annotations

from typing import Any, NamedTuple

CALL = '<tool_call>\n{"name": "look", "arguments": %s}\n</tool_call>'


class Said(NamedTuple):
    """What a model wrote, as its next prompt has it. text, finish: of the answer.  arguments: of
    its calls; a text is no JSON object."""

    text: str
    thought: str = ""
    said: str = ""
    arguments: tuple[Any, ...] = ()
    finish: str = "stop"


ANSWERS = {
    "words": Said("It rains.", said="It rains."),
    "words cut short": Said("It ra", said="It ra", finish="length"),
    "only thoughts": Said("<think>It may rain", "It may rain", finish="length"),
    "thoughts and words": Said("<think>It may rain.</think>It rains.", "It may rain.", "It rains."),
    "a call": Said(CALL % '{"x": 1}', arguments=({"x": 1},)),
    "a call without arguments": Said(CALL % "{}", arguments=({},)),
    "words and two calls": Said(
        "Let me see." + CALL % '{"x": 1}' + CALL % '{"x": 2}',
        said="Let me see.",
        arguments=({"x": 1}, {"x": 2}),
    ),
    "words between and behind calls": Said(
        "One." + CALL % '{"x": 1}' + "Two." + CALL % '{"x": 2}' + "Three.",
        said="One.Two.Three.",
        arguments=({"x": 1}, {"x": 2}),
    ),
    "a call of thoughts": Said(
        "<think>Hm.</think>" + CALL % '{"x": "ü\\n"}', "Hm.", arguments=({"x": "ü\n"},)
    ),
    "thoughts, words and a call": Said(
        "<think>Hm.</think>Let me see." + CALL % '{"x": 1}', "Hm.", "Let me see.", ({"x": 1},)
    ),
    "a call cut short": Said(
        (CALL % '{"text": "on and on"}')[:-18],
        arguments=('{"text": "on and ',),
        finish="length",
    ),
    "a call cut short before its arguments": Said(
        '<tool_call>\n{"name": "look", "arguments": {', arguments=("{",), finish="length"
    ),
    "a call with a raw newline": Said(
        CALL % '{"text": "two\nlines"}', arguments=({"text": "two\nlines"},)
    ),
    "a call with half a character": Said(CALL % '{"x": "\\ud83d!"}', arguments=({"x": "?!"},)),
    "a call with a number of 256 bits": Said(
        CALL % f'{{"x": {2**256 - 1}}}', arguments=({"x": 2**256 - 1},)
    ),
    "a call whose arguments are no object": Said(CALL % "[1, 2]", said=CALL % "[1, 2]"),
}


FOREIGN: dict[str, tuple[str, dict[str, Any], Said]] = {
    "a refusal": (
        "/v1/chat/completions",
        {"role": "assistant", "content": None, "refusal": "I can't.", "annotations": []},
        Said("", said="I can't."),
    ),
    "a refusal in parts": (
        "/v1/chat/completions",
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I can't."}]},
        Said("", said="I can't."),
    ),
    "empty fields": (
        "/v1/chat/completions",
        {
            "role": "assistant",
            "content": "Yes.",
            "refusal": None,
            "audio": None,
            "function_call": None,
            "tool_calls": None,
            "reasoning": None,
            "annotations": None,
        },
        Said("", said="Yes."),
    ),
    "reasoning under its other name": (
        "/v1/chat/completions",
        {"role": "assistant", "content": None, "reasoning": "Hm.", "reasoning_details": [{}]},
        Said("", "Hm."),
    ),
    "a call without arguments": (
        "/v1/chat/completions",
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look"}}],
        },
        Said("", arguments=({},)),
    ),
    "annotations and logprobs": (
        "/v1/responses",
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [
                {
                    "type": "output_text",
                    "text": "Yes.",
                    "annotations": [{"type": "url_citation", "url": "https://x.example"}],
                    "logprobs": [
                        {"token": "Yes", "logprob": -0.1, "bytes": [], "top_logprobs": []}
                    ],
                }
            ],
        },
        Said("", said="Yes."),
    ),
    "an item that was cut short": (
        "/v1/responses",
        {
            "type": "message",
            "id": "msg_1",
            "status": "incomplete",
            "role": "assistant",
            "content": [{"type": "refusal", "refusal": "I can"}],
        },
        Said("", said="I can"),
    ),
    "a message without parts": (
        "/v1/responses",
        {"type": "message", "status": "incomplete", "role": "assistant", "content": []},
        Said(""),
    ),
    "a call that was cut short": (
        "/v1/responses",
        {
            "type": "function_call",
            "id": "fc_1",
            "status": "incomplete",
            "call_id": "1",
            "name": "look",
            "arguments": "",
        },
        Said("", arguments=({},)),
    ),
    "reasoning that is encrypted, with a summary": (
        "/v1/responses",
        {
            "type": "reasoning",
            "id": "rs_1",
            "status": None,
            "content": None,
            "summary": [{"type": "summary_text", "text": "S"}],
            "encrypted_content": "gAAA",
        },
        Said("", thought="S"),
    ),
    "signed thoughts": (
        "/v1/messages",
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"},
                {"type": "redacted_thinking", "data": "EmwK"},
                {"type": "text", "text": "Yes.", "citations": None},
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}, "caller": {}},
            ],
        },
        Said("", "Hm.", "Yes.", ({},)),
    ),
    "thoughts without a text": (
        "/v1/messages",
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "E"}]},
        Said(""),
    ),
    "nothing at all": ("/v1/messages", {"role": "assistant", "content": []}, Said("")),
    "thoughts of Ollama's": (
        "/api/chat",
        {
            "role": "assistant",
            "content": "",
            "thinking": "Hm.",
            "tool_calls": [{"function": {"index": 0, "name": "look", "arguments": {}}}],
        },
        Said("", "Hm.", arguments=({},)),
    ),
    "a null content of Ollama's": (
        "/api/chat",
        {"role": "assistant", "content": None, "thinking": None, "tool_calls": None},
        Said(""),
    ),
}
