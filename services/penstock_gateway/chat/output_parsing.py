"""Which parsers a request's answers go through."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock.config.settings import GatewayConfig
from penstock.parsing import OutputParser, reasoning_parser, tool_parser
from penstock.parsing.forced import NamedCall, RequiredCalls
from penstock.parsing.output import ChainedParser
from penstock_gateway.chat.parsed_choice import Parsing
from penstock_gateway.chat.reasoning_tokens import closing_token
from penstock_gateway.chat.tools import ToolUse

if TYPE_CHECKING:
    from penstock.parsing import ReasoningParser, ToolParser
    from penstock.sampling_params import SamplingParams
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.chat.prompt import ChatPrompt

Tools = type["ToolParser"]
Thoughts = type["ReasoningParser"]


def check_parsers(config: GatewayConfig) -> None:
    """Raises StartupError for a parser that doesn't exist."""
    tool_parser(config.tool_call_parser, "")
    reasoning_parser(config.reasoning_parser, "")


def needs_special_tokens(config: GatewayConfig, template: str, use: ToolUse) -> bool:
    """Whether calls are marked by special tokens, which the text must then show."""
    return (
        use.mode == "free" and tool_parser(config.tool_call_parser, template).needs_special_tokens
    )


def read_as(
    config: GatewayConfig,
    template: str,
    use: ToolUse,
    prompt: ChatPrompt,
    tokenizer: Tokenizer,
    params: SamplingParams,
    *,
    include_reasoning: bool,
) -> tuple[SamplingParams, Parsing | None]:
    """The parameters of a request, with the special tokens that its parser needs to see, and how
    its answers are read; see `parsing_of`."""
    constrained = params.structured_outputs is not None
    parsing = parsing_of(
        config,
        template,
        use,
        prompt.text,
        tokenizer,
        constrained=constrained,
        include_reasoning=include_reasoning,
    )
    if needs_special_tokens(config, template, use) and not constrained:
        params = msgspec.structs.replace(params, skip_special_tokens=False)
    return params, parsing


def parsing_of(
    config: GatewayConfig,
    template: str,
    use: ToolUse,
    prompt: str,
    tokenizer: Tokenizer,
    *,
    constrained: bool,
    include_reasoning: bool,
) -> Parsing | None:
    """None where all text is content.

    template: the chat template.  prompt: the same, filled.  constrained: the answer must match a
    grammar of the client's own, so it holds neither thoughts nor calls.
    """
    new_id = tool_parser(config.tool_call_parser, template).new_id
    if use.mode == "named":
        return Parsing(partial(NamedCall, use.name), new_id, calls_finish=False)
    if use.mode == "required":
        return Parsing(partial(RequiredCalls, use.names), new_id, use.most)
    if constrained:
        return None
    thoughts = reasoning_parser(config.reasoning_parser, template)
    tools = tool_parser(config.tool_call_parser, template) if use.mode == "free" else None
    if thoughts is None and tools is None:
        return None
    return Parsing(
        partial(_make, tools, thoughts, use.names, prompt[-256:]),
        new_id,
        use.most,
        include_reasoning,
        closing_token(thoughts, tokenizer),
    )


def _make(
    tools: Tools | None, thoughts: Thoughts | None, names: tuple[str, ...], prompt: str
) -> OutputParser:
    if thoughts is None and tools is not None:
        return tools(names)
    if tools is None and thoughts is not None:
        return thoughts(prompt)
    if tools is None or thoughts is None:
        raise ValueError("the output has no parser")
    return ChainedParser(thoughts(prompt), tools(names))
