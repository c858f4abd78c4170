"""POST /completion, llama-server's own: prompts in, one or several answers to each out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import msgspec

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.request.sampling_params import MAX_LOGPROBS, SamplingParams
from penstock.text.tokenizer import Tokenizer
from penstock_dialects.llamacpp.reply import (
    LlamaAnswer,
    LlamaSpec,
    PromptFacts,
    Shown,
)
from penstock_dialects.llamacpp.request import (
    LLAMA,
    LlamaFields,
    parameters,
    response_fields,
)
from penstock_gateway.completions.endpoint import MAX_PROMPTS, MAX_SEQUENCES
from penstock_gateway.generate.endpoint import GenerateEndpoint
from penstock_gateway.generate.job import PreparedRequest
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.http.errors import clip
from penstock_gateway.http.operations import GENERATING_HEADERS, OperationRoute, posting
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.answer_form import blame, structure_field
from penstock_gateway.request.fields import (
    Flag,
    GenerateFields,
    Object,
    Text,
    UnsupportedField,
    Whole,
    check_unsupported,
)
from penstock_gateway.request.sampling import check_ids
from penstock_gateway.request.tokenising import encode, off_the_loop
from penstock_gateway.service import Service

DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""llama.cpp's, where the model brings none of its own."""
BANNED = -100.0
"""The bias that `false` stands for."""
MOST_PIECES = 1024
"""Entries of a prompt that is a list, where one of them is a text."""
MOST_CHARACTERS = 256
"""The longest text in logit_bias."""
ALL_CHARACTERS = 16_384
"""Characters of all texts in logit_bias, which are tokenised."""

Piece = str | int


class PromptText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """multimodal_data: pictures and sounds go into chat completions' messages."""

    prompt_string: str
    multimodal_data: list[str] | None = None


Prompt = str | list[Piece] | PromptText
Biases = dict[str, float | bool] | list[list[str | int | float | bool]] | None


class LlamaCompletionRequest(LlamaFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """prompt: a text, a list of token ids, or one of texts and ids, which are one prompt; or a list
    of such prompts, whose answers are a list.  grammar: GBNF.  json_schema: what the answer
    matches.  logit_bias: pairs of a token's id, or a text whose tokens are meant, and a bias, where
    `false` bans; or an object.  n_probs: likeliest tokens that are shown at each place.
    temperature, top_k, top_p, min_p: by default the model's own, else 0.8, 40, 0.95 and 0.05."""

    prompt: str | list[str | int | list[Piece] | PromptText] | PromptText | None = None
    grammar: Text = None
    json_schema: Object = None
    logit_bias: Biases = None
    n_probs: Whole = None

    # Only at their neutral value.
    post_sampling_probs: Flag = None


RULES = (UnsupportedField("post_sampling_probs", (False,)),)

OPERATION = posting(
    "/completion",
    "Continue prompts (llama.cpp)",
    LlamaCompletionRequest,
    LlamaAnswer,
    streams=True,
    headers=GENERATING_HEADERS,
    traced_as="text_completion",
)


class LlamaCompletion(GenerateEndpoint[LlamaCompletionRequest]):
    request_type = LlamaCompletionRequest
    reply_spec = LlamaSpec
    id_prefix = "completion-"

    def check(self, request: LlamaCompletionRequest) -> None:
        LLAMA.check(request)
        check_unsupported(request, RULES)
        response_fields(request)
        count = request.n_probs or 0
        if not 0 <= count <= MAX_LOGPROBS:
            raise InvalidRequest(
                f"n_probs must be a whole number in [0, {MAX_LOGPROBS}], not {count}",
                param="n_probs",
            )

    async def prepare(
        self,
        request: LlamaCompletionRequest,
        engine: EngineInfo,
        head: ReplyHead,
        lease: MediaLease,
    ) -> PreparedRequest:
        prompts = _prompts(request)
        asked = _asked(request, engine)
        field = structure_field(asked)
        blamed = partial(_blamed, field=field)
        ids = [await _ids_of(prompt, engine) for prompt in prompts]
        logprobs = request.n_probs or None
        params = parameters(request, asked, engine, ids, source="prompt", logprobs=logprobs)
        tokenizer = engine.text.tokenizer
        facts = []
        for prompt, each, wanted in zip(prompts, ids, params, strict=True):
            prompted = PromptFacts(
                tokens=len(each),
                settings=_settings(request, wanted),
                prompt=await _text_of(prompt, each, tokenizer),
            )
            facts.append(prompted)
        wishes = Shown(
            fields=response_fields(request),
            tokens=bool(request.return_tokens),
            probabilities=logprobs is not None,
            is_list=_are_several(request.prompt),
        )
        spec = LlamaSpec(facts, params[0].n, request.n_predict != 0, wishes)
        return PreparedRequest(ids, params, spec, blamed)


def _are_several(prompt: Any) -> bool:
    """Whether it is a list of prompts: not of ids alone, nor of ids and texts."""
    return isinstance(prompt, list) and not any(type(each) is int for each in prompt)


def _prompts(request: LlamaCompletionRequest) -> list[Prompt]:
    """The prompts in their order, none empty. Raises InvalidRequest."""
    prompt = request.prompt
    if prompt is None:
        raise InvalidRequest("prompt is missing", param="prompt", code="missing_required_parameter")
    prompts = cast("list[Prompt]", prompt if _are_several(prompt) else [prompt])
    count = len(prompts)
    if not 1 <= count <= MAX_PROMPTS:
        raise InvalidRequest(
            f"prompt has {count} entries; 1 to {MAX_PROMPTS} are allowed", param="prompt"
        )
    n = request.n_cmpl or 1
    if count * n > MAX_SEQUENCES:
        raise InvalidRequest(
            f"{count} prompts with n_cmpl = {n} make {count * n} answers; at most {MAX_SEQUENCES}"
            " are allowed",
            param="n_cmpl",
        )
    for each in prompts:
        if isinstance(each, PromptText) and each.multimodal_data:
            raise InvalidRequest(
                "prompt.multimodal_data is not supported here: pictures and sounds stand in the"
                " messages of /v1/chat/completions; allowed: [] or null",
                param="prompt.multimodal_data",
                code="unsupported_value",
            )
        if isinstance(each, list):
            _check_pieces(each)
    return prompts


def _check_pieces(pieces: Sequence[Any]) -> None:
    """Raises InvalidRequest for a prompt that isn't made of texts and ids, or of too many."""
    wrong = next((each for each in pieces if not isinstance(each, str | int)), None)
    if wrong is not None:
        raise InvalidRequest(
            f"prompt has {clip(wrong)} among token ids and texts; allowed are ids, texts, or lists"
            " of both",
            param="prompt",
        )
    if len(pieces) > MOST_PIECES and any(isinstance(each, str) for each in pieces):
        raise InvalidRequest(
            f"prompt has {len(pieces)} entries; with texts among them at most {MOST_PIECES} are"
            " allowed",
            param="prompt",
        )


async def _ids_of(prompt: Prompt, engine: EngineInfo) -> list[int]:
    """Token ids of a prompt; BOS, where the model wants it, stands in front of a text that begins
    it. Raises InvalidRequest."""
    pieces = prompt if isinstance(prompt, list) else [_plain(prompt)]
    ids: list[int] = []
    for at, (is_text, run) in enumerate(
        itertools.groupby(pieces, key=lambda each: isinstance(each, str))
    ):
        if not is_text:
            own = cast("list[int]", list(run))
            check_ids("prompt", own, engine.welcome.limits.vocab_size)
            ids += own
            continue
        text = "".join(cast("list[str]", list(run)))
        ids += await _text_ids(text, engine, begins=at == 0)
    if not ids:
        raise InvalidRequest("prompt is empty; it must have at least one token", param="prompt")
    return ids


async def _text_ids(text: str, engine: EngineInfo, *, begins: bool) -> list[int]:
    """Token ids of a text. begins: whether nothing stands in front."""
    tokenizer = engine.text.tokenizer
    return await encode(
        lambda most: tokenizer.encode(text, most=most, add_special=begins),
        len(text),
        engine.welcome.limits.max_model_len,
    )


def _plain(prompt: str | PromptText) -> str:
    return prompt if isinstance(prompt, str) else prompt.prompt_string


async def _text_of(prompt: Prompt, ids: list[int], tokenizer: Tokenizer) -> str:
    if not isinstance(prompt, list):
        return _plain(prompt)
    return await off_the_loop(lambda: tokenizer.decode(ids, skip_special_tokens=False), len(ids))


def _asked(request: LlamaCompletionRequest, engine: EngineInfo) -> GenerateFields:
    """The request in the words of other endpoints."""
    asked, own = LLAMA.ours(request), engine.welcome.generation
    for name, value in DEFAULTS.items():
        if asked[name] is None and getattr(own, name) is None:
            asked[name] = value
    return GenerateFields(
        **asked,
        logit_bias=_bias(
            request.logit_bias, engine.text.tokenizer, engine.welcome.limits.max_logit_bias
        ),
        grammar=request.grammar,
        json_schema=request.json_schema,
    )


def _bias(
    wanted: dict[str, float | bool] | list[list[str | int | float | bool]] | None,
    tokenizer: Tokenizer,
    most: int,
) -> dict[str, float] | None:
    """A bias of each token id. most: ids that may have one, and so entries.  Raises
    InvalidRequest."""
    by_id = isinstance(wanted, dict)
    if len(wanted or ()) > most:
        raise InvalidRequest(
            f"logit_bias has {len(wanted or ())} entries; at most {most} are allowed"
            " (--max-logit-bias)",
            param="logit_bias",
        )
    pairs: Iterable[Sequence[Any]] = wanted.items() if isinstance(wanted, dict) else wanted or ()
    found: dict[str, float] = {}
    characters = 0
    for pair in pairs:
        key: Any = pair[0] if len(pair) == 2 else None
        bias = pair[-1] if pair else None
        if type(key) not in (int, str) or bias is True or not isinstance(bias, float | int):
            raise InvalidRequest(
                f"logit_bias has {clip(pair)}; allowed are pairs of a token's id or a text, and a"
                " number or false",
                param="logit_bias",
            )
        is_id = type(key) is int or (by_id and key.isdigit())
        if not is_id and len(key) > MOST_CHARACTERS:
            raise InvalidRequest(
                f"logit_bias has a text of {len(key)} characters; at most {MOST_CHARACTERS} are"
                " allowed",
                param="logit_bias",
            )
        characters += 0 if is_id else len(key)
        if characters > ALL_CHARACTERS:
            raise InvalidRequest(
                f"logit_bias has texts of more than {ALL_CHARACTERS} characters together; at most"
                " so many are allowed",
                param="logit_bias",
            )
        ids = [key] if is_id else tokenizer.encode(key, add_special=False)
        found |= dict.fromkeys(map(str, ids), BANNED if bias is False else float(bias))
    return found or None


def _settings(request: LlamaCompletionRequest, params: SamplingParams) -> dict[str, Any]:
    """What the request came to, by llama.cpp's names."""
    return {
        "n_predict": params.max_tokens,
        "seed": params.seed,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": params.stop,
        "ignore_eos": params.ignore_eos,
        "n_probs": request.n_probs or 0,
        "stream": bool(request.stream),
        "grammar": request.grammar or "",
    }


def _blamed(error: InvalidRequest, field: str | None) -> InvalidRequest:
    return LLAMA.own_words(blame(error, field))


def routes(service: Service) -> list[OperationRoute]:
    """The route, by both of its names."""
    endpoint = LlamaCompletion(service)
    return [
        replace(OPERATION, path=path).route(endpoint) for path in (OPERATION.path, "/completions")
    ]
