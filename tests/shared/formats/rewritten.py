"""What the templates of releases write otherwise than the model did, when they show it its turn.

Penstock can't keep it: the template leaves it out, or has one way of its own to write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BETWEEN = "thoughts of an answer, once the user goes on"
THOUGHTS = "all thoughts"
TEXT = "a text before calls"
ORDER = "the order of keys: they are sorted"
WORDS = "`true` and `null`, as in Python"
VALUES = "objects and lists, as in Python"
IDS = "calls, with ids"
TURNS = "calls in one turn: each in a turn of its own"
HEAD = "the head of a call"
LINE = "a line break behind thoughts"
END = "the end of an answer"


@dataclass(frozen=True)
class Rewrite:
    """why: for people.  turns: names of those in TURNS.  old, new: what the model wrote, or the
    prompt before it, and the template shows; {id} stands for the first call's, {second} for the
    next one's."""

    why: str
    turns: tuple[str, ...]
    old: str
    new: str = ""


CALLS = ("call", "thoughts, call", "text, call", "two calls", "values", "spelling")
PLAIN_CALLS = ("call", "two calls", "values", "spelling")
TRUE = Rewrite(WORDS, ("values",), "true", "True")
_THINK = "<think>\nHm.\n</think>\n\n"


def between(old: str, new: str = "") -> Rewrite:
    return Rewrite(BETWEEN, ("thoughts",), old, new)


def dropped(old: str, *turns: str, new: str = "") -> Rewrite:
    return Rewrite(THOUGHTS, (*(turns or CALLS), "thoughts"), old, new)


_LLAMA_TURN = Rewrite(
    TURNS,
    ("two calls",),
    "; ",
    '<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"Rain."<|eot_id|>'
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
)
_GEMMA = (
    between("<|channel>thought\nHm.\n<channel|>"),
    Rewrite(TEXT, ("text, call",), "Let me see."),
    Rewrite(ORDER, ("values",), "sure:true,city:", "city:"),
    Rewrite(
        ORDER,
        ("values",),
        'tags:[<|"|>a<|"|>,<|"|>b<|"|>]',
        'sure:true,tags:[<|"|>a<|"|>,<|"|>b<|"|>]',
    ),
    Rewrite(WORDS, ("values",), "null", "None"),
    Rewrite(
        ORDER,
        ("spelling",),
        'b:{y:1e5,x:<|"|>café<|"|>,w:1.0},a:1e2',
        'a:1e2,b:{w:1.0,x:<|"|>café<|"|>,y:1e5}',
    ),
)
_APRIEL = "Here are my reasoning steps:\nHm.\n[BEGIN FINAL RESPONSE]\n"
_IDS = (
    Rewrite(IDS, CALLS, "}]", ', "id": "{last}"}]'),
    Rewrite(IDS, ("two calls",), '}, {"name"', ', "id": "{first}"}, {"name"'),
)
_ONE_CALL = ("call", "thoughts, call", "text, call", "values")
_CALL_HEAD = "<|channel|>commentary to=functions.get_weather <|constrain|>json"
_ADD_HEAD = _CALL_HEAD.replace("get_weather", "add")


def _shown_head(name: str) -> str:
    return f" to=functions.{name}<|channel|>commentary json"


REWRITES: Mapping[str, tuple[Rewrite, ...]] = {
    "Qwen-Qwen3-0.6B": (between(_THINK),),
    "Qwen-QwQ-32B": (dropped(_THINK),),
    "Qwen3-Coder": (TRUE,),
    "Qwen3.5-4B": (between(_THINK), TRUE),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (between("\nHm.\n</think>", "</think>"), TRUE),
    "StepFun3.5-Flash": (between("<think>\nHm.\n</think>\n"), TRUE),
    "GLM-4.6": (between("<think>Hm.</think>", "<think></think>"),),
    "GLM-4.7-Flash": (between("<think>Hm.</think>", "</think>"),),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (
        dropped(_THINK),
        Rewrite(TEXT, ("text, call",), "Let me see."),
    ),
    "deepseek-ai-DeepSeek-V3.1": (dropped("<think>Hm.</think>", new="<think></think>"),),
    "deepseek-ai-DeepSeek-V3.2": (between("<think>Hm.</think>", "</think>"),),
    "MiniMax-M2": (between(_THINK),),
    "ByteDance-Seed-OSS": (
        TRUE,
        Rewrite(VALUES, ("values",), '{"a": {"b": [1, null]}}', "{'a': {'b': [1, None]}}"),
        Rewrite(VALUES, ("values",), '["a", "b"]', "['a', 'b']"),
        Rewrite(
            VALUES,
            ("spelling",),
            r'{"y":  1e5, "x": "caf\u00e9", "w":1.0}',
            "{'y': 1e5, 'x': 'café', 'w': 1.0}",
        ),
    ),
    "google-gemma-4-31B-it": _GEMMA,
    "google-gemma-4-31B-it-interleaved": (
        *_GEMMA,
        Rewrite(LINE, ("thoughts, call",), "Hm.\n", "Hm."),
    ),
    "LFM2.5-8B-A1B": (between("<think>Hm.</think>"),),
    "Cohere2MoE": (Rewrite(TEXT, ("text, call",), "<|START_TEXT|>Let me see.<|END_TEXT|>"),),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": (
        between("<|START_THINKING|>Hm.<|END_THINKING|>"),
        Rewrite(TEXT, ("text, call",), "<|START_RESPONSE|>Let me see.<|END_RESPONSE|>"),
    ),
    "MiniMax-M1": (
        Rewrite(THOUGHTS, ("thoughts, call",), _THINK),
        Rewrite(TEXT, ("text, call",), "Let me see."),
    ),
    "Apriel-1.6-15b-Thinker-fixed": (dropped(_APRIEL), *_IDS),
    "unsloth-Apriel-1.5": (dropped(_APRIEL, "thoughts, call"), *_IDS),
    "NVIDIA-Nemotron-Nano-v2": (dropped(_THINK),),
    "meta-llama-Llama-3.1-8B-Instruct": (_LLAMA_TURN,),
    "meta-llama-Llama-3.3-70B-Instruct": (_LLAMA_TURN,),
    "mistralai-Mistral-Nemo-Instruct-2407": (
        *_IDS,
        Rewrite(TEXT, ("text, call",), "Let me see."),
    ),
    "openai-gpt-oss-120b": (
        Rewrite(END, ("text", "thoughts"), "<|return|>", "<|end|>"),
        between("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"),
        Rewrite(HEAD, _ONE_CALL, _CALL_HEAD, _shown_head("get_weather")),
        Rewrite(HEAD, ("spelling",), _ADD_HEAD, _shown_head("add")),
        Rewrite(
            "the channel of a text before calls",
            ("text, call",),
            "<|channel|>commentary<|message|>Let",
            "<|channel|>analysis<|message|>Let",
        ),
    ),
}
