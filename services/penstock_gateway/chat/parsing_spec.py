"""Data from which the parser of a request's answers is made, here or in another process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from penstock.parsing import OutputParser, reasoning_parser, tool_parser
from penstock.parsing.format import AnyFormat
from penstock.parsing.output import NamedCall, OnlyCalls, RequiredCalls, whole_parser
from penstock.parsing.registry import ToolFormat, at_the_beginning
from penstock_gateway.chat.parsed_choice import Marking, Parsing
from penstock_gateway.chat.token_marks import TokenMarks, closing_token, token_marks

if TYPE_CHECKING:
    from penstock.config.settings import GatewayConfig
    from penstock.parsing.registry import ReasoningFormat
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.models.backend import EngineInfo

KNOWN_MARKS = 64
"""Formats, each with a tokenizer, whose marks are remembered."""

CallsAs = Literal["offered", "only", "named", "required"]
"""How the calls of an answer are written: as the model chooses; as an answer that is calls in the
model's own format and nothing else; as JSON that a grammar has forced: the arguments of the named
function, or an array of calls."""


class AnswerModel(NamedTuple):
    """The model that writes answers, as far as reading them depends on it."""

    config: GatewayConfig
    template: str
    """Its chat template's text; empty where it has none."""
    tokenizer: Tokenizer
    family: str = ""
    """The family of its layers."""

    @classmethod
    def of(cls, engine: EngineInfo) -> AnswerModel:
        text = engine.text
        source = "" if text.template is None else text.template.source
        return cls(engine.config, source, text.tokenizer, engine.welcome.family)

    def formats(self) -> tuple[ToolFormat, ReasoningFormat | None]:
        """The formats of calls and thoughts: those of the settings, or the template's own."""
        config, template, family = self.config, self.template, self.family
        return (
            tool_parser(config.tool_call_parser, template, family),
            reasoning_parser(config.reasoning_parser, template, family),
        )


class ParsingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a Parsing, together with the model and the gateway's settings."""

    calls: CallsAs | None
    """None: the answer calls nothing."""
    name: str = ""
    """The function that `named` calls."""
    offered: dict[str, Any] = {}
    """Schemas of the tools' arguments, by the tool's name, as the client gave them."""
    custom: frozenset[str] = frozenset()
    """Names of custom tools."""
    at_beginning: bool = False
    """Calls of the model's own format stand only where an answer begins, or its thoughts have
    ended."""
    thinks: bool
    """Whether thoughts are separated from content."""
    prompt_end: str
    """The filled template's end, which may have begun the thoughts."""
    most: int | None = None
    """Calls that are shown; None: all."""
    calls_finish: bool = True
    shows_reasoning: bool = True
    whole_calls: bool = False
    """Whether calls are shown whole: Parsing.whole_calls."""
    skips_special_tokens: bool = True
    """SamplingParams.skip_special_tokens."""

    def parsing(self, model: AnswerModel) -> Parsing:
        """What reads the answers of this request."""
        calls, tools, thoughts = self._readers(model)
        marks = _marks(_form(tools), _form(thoughts), model.tokenizer)
        marking = None
        if marks is not None:
            marking = Marking(marks, model.tokenizer, self.skips_special_tokens)
        letters = {} if marks is None else marks.letters
        return Parsing(
            partial(whole_parser, tools, thoughts, self.offered, self.prompt_end, letters),
            calls.new_id,
            self.most,
            self.shows_reasoning,
            closing_token(thoughts, model.tokenizer),
            calls_finish=self.calls_finish,
            whole_calls=self.whole_calls,
            custom=self.custom,
            marking=marking,
        )

    def needs_special_tokens(self, model: AnswerModel) -> bool:
        """Whether the text that is read must show special tokens."""
        _, tools, thoughts = self._readers(model)
        marks = _marks(_form(tools), _form(thoughts), model.tokenizer)
        return bool((marks and marks.special) or (tools and tools.needs_special_tokens))

    def _readers(
        self, model: AnswerModel
    ) -> tuple[ToolFormat, ToolFormat | None, ReasoningFormat | None]:
        """How calls are written, and what is read of calls and of thoughts."""
        calls, thoughts = model.formats()
        thoughts = thoughts if self.thinks else None
        calls = self._calls(calls, thoughts)
        return calls, None if self.calls is None else calls, thoughts

    def _calls(self, calls: ToolFormat, thoughts: ReasoningFormat | None) -> ToolFormat:
        if self.at_beginning:
            calls = at_the_beginning(calls)
        if self.calls == "only":
            return replace(calls, make=partial(_only_calls, calls))
        if self.calls in ("named", "required"):
            make = self._named(thoughts) if self.calls == "named" else self._required
            return ToolFormat(self.calls, make, calls.new_id)
        return calls

    def _named(
        self, thoughts: ReasoningFormat | None
    ) -> Callable[[Collection[str], dict[str, str]], OutputParser]:
        return lambda tools, letters: NamedCall(self.name, may_be_missing=thoughts is not None)

    def _required(self, tools: Collection[str], letters: dict[str, str]) -> OutputParser:
        return RequiredCalls(tuple(self.offered))


def _only_calls(calls: ToolFormat, tools: Collection[str], letters: dict[str, str]) -> OutputParser:
    return OnlyCalls(calls(tools, letters))


def parsing_of(spec: ParsingSpec | None, engine: EngineInfo) -> Parsing | None:
    """What reads the answers of a request of this model's; None: all of them is text."""
    return None if spec is None else spec.parsing(AnswerModel.of(engine))


@lru_cache(maxsize=KNOWN_MARKS)
def _marks(
    calls: AnyFormat | None, thoughts: AnyFormat | None, tokenizer: Tokenizer
) -> TokenMarks | None:
    forms = [form for form in (calls, thoughts) if form is not None]
    return token_marks([mark for form in forms for mark in form.tokens], tokenizer)


def _form(reader: ToolFormat | ReasoningFormat | None) -> AnyFormat | None:
    return None if reader is None else reader.form
