"""Which parsers a request's answers go through."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import msgspec

from penstock.client.thinking import thoughts_of, unbounded_thoughts
from penstock.config.settings import GatewayConfig
from penstock.parsing import OutputParser, reasoning_parser, tool_parser
from penstock.parsing.format import AnyFormat, CallFormat, ChannelFormat
from penstock.parsing.output import NamedCall, OnlyCalls, RequiredCalls, whole_parser
from penstock.parsing.registry import ToolFormat, at_the_beginning
from penstock.process import logs
from penstock_gateway.chat.answer_grammar import answer_grammar, bytes_of, strict_grammar
from penstock_gateway.chat.parsed_choice import Marking, Parsing
from penstock_gateway.chat.prompt import ThinkingSwitch
from penstock_gateway.chat.token_marks import TokenMarks, closing_token, token_marks
from penstock_gateway.chat.tools import ToolUse

if TYPE_CHECKING:
    from penstock.parsing.registry import ReasoningFormat
    from penstock.request.sampling_params import SamplingParams
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.chat.prompt import ChatPrompt, ThinkingRequest
    from penstock_gateway.models.backend import EngineInfo

log = logs.get(__name__)

PROMPT_END = 256
"""Characters of a filled template that say whether it has begun the answer's thoughts."""
KNOWN_MARKS = 64
"""Formats, each with a tokenizer, whose marks are remembered."""


def check_parsers(config: GatewayConfig) -> None:
    """Raises StartupError for a parser that doesn't exist."""
    tool_parser(config.tool_call_parser, "")
    reasoning_parser(config.reasoning_parser, "")


def read_as(
    config: GatewayConfig,
    template: str,
    use: ToolUse,
    prompt: ChatPrompt,
    tokenizer: Tokenizer,
    params: SamplingParams,
    *,
    include_reasoning: bool,
    largest_grammar: int,
    family: str = "",
) -> tuple[SamplingParams, Parsing | None]:
    """The parameters of a request, with the grammar of its answer and the special tokens that its
    parser needs to see, and how its answers are read; the latter is None where all text is content.

    template: the chat template.  family: of the model's layers.  prompt: the filled template.
    largest_grammar: bytes that the engine takes of one. Calls whose own format needs more are
    forced as JSON, which is shorter, and of strict tools only the names are held to.
    """
    calls = tool_parser(config.tool_call_parser, template, family)
    thoughts = reasoning_parser(config.reasoning_parser, template, family)
    end = prompt.text[-PROMPT_END:]
    own, held = None, use.held(config.tool_strict_level)
    if isinstance(calls.form, CallFormat) and calls.known:
        own = use.own_grammar(calls.form, template)
    forced = use.mode in ("named", "required")
    form = None if thoughts is None else thoughts.form
    outputs = params.structured_outputs
    if held or outputs is not None:
        calls = at_the_beginning(calls)
    if held or outputs is not None or forced:
        if held:
            grammar = strict_grammar(
                outputs, use, calls, form, template, end, held, largest_grammar
            )
        else:
            grammar = answer_grammar(outputs, use, calls.form, form, end, own)
            if own is not None and grammar is not None and bytes_of(grammar) > largest_grammar:
                own, grammar = None, answer_grammar(outputs, use, calls.form, form, end, None)
        if grammar is not None:
            if grammar is outputs:
                return params, None
            params = msgspec.structs.replace(params, structured_outputs=grammar)
            thoughts = thoughts if form is not None else None
    if own is not None:
        calls = replace(calls, make=partial(_only_calls, calls))
    elif forced and not isinstance(calls.form, ChannelFormat):
        calls = _forced(use, thoughts, calls.new_id)
    tools = calls if use.mode != "off" else None
    if use.mode == "free" and not calls.known:
        _say_unknown(template, family)
    if thoughts is None and tools is None:
        return params, None
    marks = _marks(_form(tools), _form(thoughts), tokenizer)
    shows = (marks is not None and marks.special) or (tools and tools.needs_special_tokens)
    if shows:
        params = msgspec.structs.replace(params, skip_special_tokens=False)
    letters = {} if marks is None else marks.letters
    parsing = Parsing(
        partial(whole_parser, tools, thoughts, use.schemas, end, letters),
        calls.new_id,
        use.most,
        include_reasoning,
        closing_token(thoughts, tokenizer),
        calls_finish=use.mode != "named",
        custom=use.custom,
        marking=None if marks is None else Marking(marks, tokenizer, params.skip_special_tokens),
    )
    return params, parsing


def with_budget(
    params: SamplingParams, request: ThinkingRequest, engine: EngineInfo
) -> SamplingParams:
    """The parameters with the budget of `thinking`, where no other field says one. Clients send it
    to any model: one that doesn't mark its thoughts with tokens of their own has none."""
    thinking = request.thinking
    if request.thinking_token_budget is not None or not isinstance(thinking, ThinkingSwitch):
        return params
    if thinking.type == "disabled" or thinking.budget_tokens is None:
        return params
    form = thoughts_of(engine.config.reasoning_parser, engine.welcome, engine.text)
    if unbounded_thoughts(form, engine.text.tokenizer):
        return params
    return msgspec.structs.replace(params, thinking_token_budget=thinking.budget_tokens)


def reading_of(engine: EngineInfo) -> str:
    """Names all that says how answers are read, beside the request and the model."""
    config, template = engine.config, engine.welcome.template_sha256
    return f"{template} {config.tool_call_parser} {config.reasoning_parser}"


def _only_calls(calls: ToolFormat, tools: Collection[str], letters: dict[str, str]) -> OutputParser:
    return OnlyCalls(calls(tools, letters))


def _forced(
    use: ToolUse, thoughts: ReasoningFormat | None, new_id: Callable[[], str]
) -> ToolFormat:
    """What reads calls that a grammar has made JSON."""

    def parser(tools: Collection[str], letters: dict[str, str]) -> OutputParser:
        if use.mode == "named":
            return NamedCall(use.name, may_be_missing=thoughts is not None)
        return RequiredCalls(use.names)

    return ToolFormat(use.mode, parser, new_id)


@lru_cache(maxsize=KNOWN_MARKS)
def _say_unknown(template: str, family: str) -> None:
    """Once for a model."""
    log.warning(
        "the format in which this model writes tool calls isn't known; only calls that are plain"
        " JSON are found in its answers (--tool-call-parser names another format)",
        family=family,
    )


@lru_cache(maxsize=KNOWN_MARKS)
def _marks(
    calls: AnyFormat | None, thoughts: AnyFormat | None, tokenizer: Tokenizer
) -> TokenMarks | None:
    forms = [form for form in (calls, thoughts) if form is not None]
    return token_marks([mark for form in forms for mark in form.tokens], tokenizer)


def _form(reader: ToolFormat | ReasoningFormat | None) -> AnyFormat | None:
    return None if reader is None else reader.form
