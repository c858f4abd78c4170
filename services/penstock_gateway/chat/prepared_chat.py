"""What endpoints in other shapes than chat's make of their request, once it is one of chat's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from penstock.media.budget import MediaLease
from penstock.sampling_params import SamplingParams
from penstock_gateway.chat import request as chat_request
from penstock_gateway.chat.endpoint import blame_of, prompt_of, tools_of, with_grammar
from penstock_gateway.chat.output_parsing import needs_special_tokens, parsing_of
from penstock_gateway.chat.parsed_choice import Parsing
from penstock_gateway.chat.prompt import ChatMedia, ChatPrompt, template_of
from penstock_gateway.chat.request import ChatRequest
from penstock_gateway.generate.endpoint import Blame
from penstock_gateway.request.sampling import sampling_params
from penstock_gateway.service import EngineInfo, Service


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """One conversation, ready to be answered."""

    prompt: ChatPrompt
    params: SamplingParams
    parsing: Parsing | None
    """How the answer's text is read; None: it is all text."""
    blame: Blame


async def prepared_chat(
    service: Service,
    chat: ChatRequest,
    engine: EngineInfo,
    lease: MediaLease,
    *,
    max_tokens: Callable[[int], int],
    logprobs: int | None = None,
) -> PreparedChat:
    """`max_tokens` returns the answer's, for a prompt of so many tokens. Raises InvalidRequest in
    chat's names, and what preparing media raises."""
    config = service.config
    chat_request.check(chat)
    use = tools_of(chat, auto_allowed=config.enable_auto_tool_choice)
    prompt = await prompt_of(chat, engine, use, ChatMedia(service.media, lease))
    most = max_tokens(len(prompt.prompt_token_ids))
    params = sampling_params(chat, engine.welcome, max_tokens=most, logprobs=logprobs)
    template = template_of(engine).source
    constrained = params.structured_outputs is not None
    parsing = parsing_of(
        config,
        template,
        use,
        prompt.text,
        engine.text.tokenizer,
        constrained=constrained,
        include_reasoning=True,
    )
    if needs_special_tokens(config, template, use) and not constrained:
        params = msgspec.structs.replace(params, skip_special_tokens=False)
    return PreparedChat(prompt, with_grammar(params, use), parsing, blame_of(chat, use))
