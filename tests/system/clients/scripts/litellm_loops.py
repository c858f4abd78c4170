"""LiteLLM's completion, as a loop: as `openai/`, `hosted_vllm/` and `anthropic/`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # It would fetch a price list.

import json

import litellm
from loop import MODEL, NEXT, QUESTION, TOOL, URL, Advice, Told, rules
from report import run

litellm.telemetry = False
PROVIDERS = {
    "chat": ("openai", f"{URL}/v1"),
    "vllm": ("hosted_vllm", f"{URL}/v1"),
    "messages": ("anthropic", URL),
}


def loop(feature: str) -> Callable[[], Any]:
    provider, base = PROVIDERS[feature.partition("_")[0]]

    def looped() -> Any:
        told = Told()
        form = {"response_format": Advice} if "structured" in feature else {}
        messages: list[Any] = [
            {"role": "system", "content": rules(feature)},
            {"role": "user", "content": QUESTION},
        ]

        def ask() -> Any:
            common: Any = {"messages": messages, "tools": [TOOL], "num_retries": 0, **form}
            whole = litellm.completion(
                model=f"{provider}/{MODEL}",
                api_base=base,
                api_key="unused",
                stream="streamed" in feature,
                **common,
            )
            if "streamed" in feature:
                chunks = list(whole)
                told.deltas += sum(bool(chunk.choices[0].delta.content) for chunk in chunks)
                whole = litellm.stream_chunk_builder(chunks, messages=messages)
            message = whole.choices[0].message
            message.content = message.content or None  # Else it puts words of its own there.
            return message

        while (message := ask()).tool_calls:
            told.thoughts.append(message.reasoning_content)
            messages.append(message)
            for call in message.tool_calls:
                result = told.get_weather(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        told.thoughts.append(message.reasoning_content)
        if form:
            return told.with_answers(Advice.model_validate_json(message.content), None)
        messages += [message, {"role": "user", "content": NEXT}]
        return told.with_answers(message.content, ask().content)

    return looped


FEATURES = [f"{provider}{how}" for provider in PROVIDERS for how in ("", "_streamed")]
# Of Anthropic's models it forces a tool for the object: the others can't be called.
FEATURES += ["chat_structured", "vllm_structured"]
run({feature: loop(feature) for feature in FEATURES})
