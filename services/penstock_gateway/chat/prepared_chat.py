"""What endpoints with other formats make of their request once it is a chat request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.request.sampling_params import SamplingParams
from penstock_gateway.chat.endpoint import ChatRequest, blame_of, check_chat, prompt_of, tools_of
from penstock_gateway.chat.messages import Message
from penstock_gateway.chat.output_parsing import read_as, reading_of, with_budget
from penstock_gateway.chat.parsing_spec import AnswerModel, ParsingSpec
from penstock_gateway.chat.prompt import ChatMedia, ChatPrompt
from penstock_gateway.chat.tools import OPENAI_TOOLS, ToolLimits
from penstock_gateway.chat.truncation import truncated_prompt
from penstock_gateway.generate.job import Blame, PreparedRequest
from penstock_gateway.generate.reply_spec import ReplySpec
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.sampling import sampling_params
from penstock_gateway.service import Service


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A conversation that is ready to be answered."""

    prompt: ChatPrompt
    params: SamplingParams
    parsing: ParsingSpec | None
    """How the answer's text is read; None: it is all text."""
    blame: Blame
    """Says errors in the names of the request's own API."""
    reading: str
    """Names what the answer's text is read by; empty: it is shown as it comes."""

    def answered_by(self, reply: ReplySpec) -> PreparedRequest:
        """The conversation as a request, whose reply is written so."""
        ids = self.prompt.prompt_token_ids
        media = self.prompt.media
        return PreparedRequest(
            [ids], [self.params], reply, self.blame, media=media, reading=self.reading
        )


async def prepared_chat(
    service: Service,
    chat: ChatRequest,
    engine: EngineInfo,
    lease: MediaLease,
    *,
    max_tokens: Callable[[int], int],
    own_words: Blame,
    now: int,
    logprobs: int | None = None,
    tools: ToolLimits = OPENAI_TOOLS,
    truncation: tuple[int, str] | None = None,
) -> PreparedChat:
    """`max_tokens` returns the answer's, for a prompt of so many tokens. `own_words` says an error
    of chat's in the names of the request. now: the time that the template knows, Unix, seconds.
    truncation: tokens that the prompt may have without its oldest messages, and the request's word
    for leaving them out; None: nothing is left out.
    Raises InvalidRequest, in the request's names, and what preparing media raises."""
    try:
        config = engine.config
        check_chat(chat)
        use = tools_of(chat, auto_allowed=config.enable_auto_tool_choice, limits=tools)
        with_media = ChatMedia(service.media, lease, store=service.store)
        if truncation is None:
            prompt = await prompt_of(chat, engine, use, with_media, now)
        else:

            def fill(messages: list[Message]) -> Awaitable[ChatPrompt]:
                shorter = msgspec.structs.replace(chat, messages=messages)
                return prompt_of(shorter, engine, use, with_media, now)

            prompt = await truncated_prompt(chat.messages, fill, *truncation)
        most = max_tokens(len(prompt.prompt_token_ids))
        params = sampling_params(chat, engine.welcome, max_tokens=most, logprobs=logprobs)
        params, parsing = read_as(
            AnswerModel.of(engine),
            use,
            prompt,
            with_budget(params, chat, engine),
            include_reasoning=True,
            largest_grammar=engine.welcome.limits.max_grammar_bytes,
        )
        blame = blame_of(chat, use)
    except InvalidRequest as error:
        raise own_words(error) from None

    def blame_in_own_words(error: InvalidRequest) -> InvalidRequest:
        return own_words(blame(error))

    return PreparedChat(prompt, params, parsing, blame_in_own_words, reading_of(engine))
