"""Which parsers a request's answers go through."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from penstock.client.thinking import thoughts_of, unbounded_thoughts
from penstock.config.settings import GatewayConfig
from penstock.parsing import reasoning_parser, tool_parser
from penstock.parsing.format import CallFormat, ChannelFormat
from penstock.parsing.registry import at_the_beginning
from penstock.process import logs
from penstock_gateway.chat.answer_grammar import answer_grammar, bytes_of, strict_grammar
from penstock_gateway.chat.parsing_spec import AnswerModel, CallsAs, ParsingSpec
from penstock_gateway.chat.thinking import ThinkingSwitch
from penstock_gateway.chat.tools import ToolUse

if TYPE_CHECKING:
    from penstock.request.sampling_params import SamplingParams
    from penstock_gateway.chat.prompt import ChatPrompt
    from penstock_gateway.chat.thinking import ThinkingRequest
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
    model: AnswerModel,
    use: ToolUse,
    prompt: ChatPrompt,
    params: SamplingParams,
    *,
    include_reasoning: bool,
    largest_grammar: int,
) -> tuple[SamplingParams, ParsingSpec | None]:
    """The parameters of a request, with the grammar of its answer and the special tokens that its
    parser needs to see, and how its answers are read; the latter is None where all text is content.

    prompt: the filled template.  largest_grammar: bytes that the engine takes of one. Calls whose
    own format needs more are forced as JSON, which is shorter, and of strict tools only the names
    are held to.
    """
    calls, thoughts = model.formats()
    template, end = model.template, prompt.text[-PROMPT_END:]
    own, held = None, use.held(model.config.tool_strict_level)
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
    if use.mode == "free" and not calls.known:
        _say_unknown(template, model.family)
    if thoughts is None and use.mode == "off":
        return params, None
    spec = ParsingSpec(
        calls=_calls_as(use, own=own is not None, channels=isinstance(calls.form, ChannelFormat)),
        name=use.name,
        offered=use.schemas,
        custom=use.custom,
        at_beginning=bool(held) or outputs is not None,
        thinks=thoughts is not None,
        prompt_end=end,
        most=use.most,
        calls_finish=use.mode != "named",
        shows_reasoning=include_reasoning,
    )
    if spec.needs_special_tokens(model):
        params = msgspec.structs.replace(params, skip_special_tokens=False)
    return params, msgspec.structs.replace(spec, skips_special_tokens=params.skip_special_tokens)


def _calls_as(use: ToolUse, *, own: bool, channels: bool) -> CallsAs | None:
    """own: a grammar holds the answer to calls in the model's own format.  channels: of which calls
    have one of their own, also where they are forced."""
    if use.mode == "off":
        return None
    if own:
        return "only"
    if use.mode == "free" or channels:
        return "offered"
    return use.mode


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
    """Names all that says how answers are read, besides the request and the model."""
    config, template = engine.config, engine.welcome.template_sha256
    return f"{template} {config.tool_call_parser} {config.reasoning_parser}"


@lru_cache(maxsize=KNOWN_MARKS)
def _say_unknown(template: str, family: str) -> None:
    """Once for a model."""
    log.warning(
        "the format in which this model writes tool calls isn't known; only calls that are plain"
        " JSON are found in its answers (--tool-call-parser names another format)",
        family=family,
    )
