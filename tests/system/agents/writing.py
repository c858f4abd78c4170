"""How models of several families write their answers, and the templates that show them again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OWN = Path(__file__).with_name("strips_thoughts.jinja")
RELEASES = "PENSTOCK_RELEASES"
"""The variable that names the folder with the templates of releases."""
_MARKS = re.compile(r"<[|｜][^<>\s'\"]+?[|｜]>|\[/?[A-Z_]+\]|\[gMASK\]|<sop>")
_TEXT_MARKS = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the tool `name`."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Writing:
    """A family's template, and what its model writes where the template asks for an answer.

    template: the file's name among the templates of releases; empty: our own.
    thoughts, text, call: with {thoughts}, with {text}, and with {name}, {arguments} and {path}.
    calls: what stands before, between and after calls.
    ends: the tokens that end an answer of text, and one of calls.
    """

    template: str
    thoughts: str
    call: str
    calls: tuple[str, str, str] = ("", "\n", "")
    ends: tuple[str, str] = ("<|im_end|>", "<|im_end|>")
    text: str = "{text}"

    @property
    def name(self) -> str:
        return self.template or "our own"

    def source(self) -> str:
        """Returns the chat template's text. Raises FileNotFoundError where it isn't there."""
        if not self.template:
            return OWN.read_text()
        if not (folder := releases()):
            raise FileNotFoundError(f"{RELEASES} names no folder with templates of releases")
        return (folder / f"{self.template}.jinja").read_text()

    def answer(self, thoughts: str, text: str, calls: Sequence[Call] = ()) -> str:
        """All that the model writes."""
        said = self.thoughts.replace("{thoughts}", thoughts)
        said += self.text.replace("{text}", text) if text else ""
        if not calls:
            return said + self.ends[0]
        before, between, after = self.calls
        return said + before + between.join(map(self._call, calls)) + after + self.ends[1]

    def _call(self, call: Call) -> str:
        values = {
            "name": call.name,
            "path": call.path,
            "arguments": json.dumps({"path": call.path}),
        }
        return re.sub(r"\{(\w+)\}", lambda found: values[found[1]], self.call)

    def marks(self) -> tuple[list[str], list[str]]:
        """What the tokenizer has a token for: special tokens, and others."""
        parts = (self.source(), self.thoughts, self.call, self.text, *self.calls, *self.ends)
        texts = "\n".join(parts)
        special, others = (dict.fromkeys(each.findall(texts)) for each in (_MARKS, _TEXT_MARKS))
        return list(special), list(others)


def releases() -> Path | None:
    """The folder with the templates of releases."""
    folder = Path(os.environ.get(RELEASES, "")) / "llamacpp/models/templates"
    return folder if RELEASES in os.environ and folder.is_dir() else None


_HERMES = '<tool_call>\n{"name": "{name}", "arguments": {arguments}}\n</tool_call>'
_XML = (
    "<tool_call>\n<function={name}>\n<parameter=path>\n{path}\n</parameter>\n</function>\n"
    "</tool_call>"
)
_GLM = "<tool_call>{name}\n<arg_key>path</arg_key>\n<arg_value>{path}</arg_value>\n</tool_call>"
_DEEPSEEK = "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"
_HARMONY = (
    "<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    "{arguments}"
)
_THINK = "<think>\n{thoughts}\n</think>\n\n"

OURS = Writing("", _THINK, _HERMES)
OF_RELEASES = (
    Writing("Qwen-Qwen3-0.6B", _THINK, _HERMES),
    Writing("Qwen3-Coder", "", _XML),
    Writing("Qwen3.5-4B", "{thoughts}\n</think>\n\n", _XML),
    Writing("GLM-4.6", "\n<think>{thoughts}</think>\n", _GLM, ends=("<|user|>", "<|observation|>")),
    Writing(
        "GLM-4.7-Flash",
        "{thoughts}</think>",
        _GLM.replace("\n", ""),
        calls=("", "", ""),
        ends=("<|user|>", "<|observation|>"),
    ),
    Writing(
        "deepseek-ai-DeepSeek-V3.1",
        "",
        _DEEPSEEK,
        calls=("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
        ends=("<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    ),
    Writing(
        "meta-llama-Llama-3.1-8B-Instruct",
        "",
        '{"name": "{name}", "parameters": {arguments}}',
        ends=("<|eot_id|>", "<|eot_id|>"),
    ),
    Writing(
        "openai-gpt-oss-120b",
        "<|channel|>analysis<|message|>{thoughts}<|end|>",
        _HARMONY,
        ends=("<|return|>", "<|call|>"),
        text="<|start|>assistant<|channel|>final<|message|>{text}",
    ),
)
