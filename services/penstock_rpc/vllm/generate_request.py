"""Turns a vllm.GenerateRequest into the fields of a completion. Unsupported fields are refused."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass

from penstock.errors import InvalidRequest
from penstock.request.sampling_params import MAX_LOGPROBS
from penstock_gateway.completions.endpoint import CompletionRequest
from penstock_gateway.request.fields import RepetitionDetection
from penstock_gateway.request.structure import StructuredFields
from penstock_rpc.protos.inference_pb2 import (
    CandidateTokens,
    DecodingParameters,
    GenerateRequest,
    StoppingCriteria,
)


@dataclass(frozen=True, slots=True)
class ShownParts:
    """What the reply shows. Candidates are counts of the likeliest tokens in each place."""

    text: bool
    token_ids: bool
    logprobs: bool
    candidates: int
    prompt_token_ids: bool
    prompt_logprobs: bool
    prompt_candidates: int

    @classmethod
    def of(cls, message: GenerateRequest) -> ShownParts:
        """Raises InvalidRequest for candidates that can't be had."""
        asked = message.response
        return cls(
            text=asked.output_text if asked.HasField("output_text") else True,
            token_ids=asked.output_token_ids,
            logprobs=asked.output_logprobs,
            candidates=_candidates(asked.output_candidates, "output_candidates"),
            prompt_token_ids=asked.prompt_token_ids,
            prompt_logprobs=asked.prompt_logprobs,
            prompt_candidates=_candidates(asked.prompt_candidates, "prompt_candidates"),
        )

    @property
    def asked_logprobs(self) -> int | None:
        """Alternatives to compute in each place of the output; None: no log-probabilities."""
        return _alternatives(self.logprobs, self.candidates)

    @property
    def asked_prompt_logprobs(self) -> int | None:
        """Alternatives to compute in each place of the prompt; None: no log-probabilities."""
        return _alternatives(self.prompt_logprobs, self.prompt_candidates)


class GenerateBody(CompletionRequest, frozen=True, kw_only=True):
    """A completion, and what its reply shows."""

    shown: ShownParts


def body_of(message: GenerateRequest, *, streamed: bool) -> GenerateBody:
    """The message as a body of /v1/completions. Raises InvalidRequest."""
    _check_supported(message)
    shown = ShownParts.of(message)
    sampling, decoding, stopping = message.sampling, message.decoding, message.stopping
    temperature = _shortest(message.temperature) if message.HasField("temperature") else None
    salt = uuid.uuid4().hex if message.kv.bypass_prefix_cache else message.kv.cache_salt or None
    skips = message.response
    return GenerateBody(
        shown=shown,
        model=message.lora_name or message.model or None,
        request_id=message.request_id or None,
        prompt=_prompt(message),
        stream=streamed,
        cache_salt=salt,
        priority=message.priority,
        session_id=message.session_id or None,
        truncate_prompt_tokens=message.truncate_prompt_tokens or None,
        n=sampling.num_sequences or None,
        temperature=temperature,
        top_k=sampling.top_k or None,
        top_p=_shortest(sampling.top_p) or None,
        min_p=_shortest(sampling.min_p) or None,
        seed=sampling.seed if sampling.HasField("seed") else None,
        presence_penalty=_shortest(decoding.presence_penalty) or None,
        frequency_penalty=_shortest(decoding.frequency_penalty) or None,
        repetition_penalty=_shortest(decoding.repetition_penalty) or None,
        logit_bias={str(key): _shortest(bias) for key, bias in decoding.logit_bias.items()} or None,
        allowed_token_ids=list(decoding.allowed_token_ids) or None,
        structured_outputs=_structure(decoding),
        max_tokens=stopping.max_new_tokens or None,
        min_tokens=stopping.min_new_tokens or None,
        stop_token_ids=list(stopping.stop_token_ids) or None,
        stop=list(stopping.stop_strings) or None,
        include_stop_str_in_output=stopping.include_stop_strings,
        ignore_eos=stopping.ignore_eos,
        repetition_detection=_repetition(stopping),
        skip_special_tokens=skips.skip_special_tokens
        if skips.HasField("skip_special_tokens")
        else None,
        logprobs=shown.asked_logprobs,
        prompt_logprobs=shown.asked_prompt_logprobs,
    )


def _prompt(message: GenerateRequest) -> str | list[str | int | list[int]] | None:
    if message.WhichOneof("prompt") == "token_ids":
        return list(message.token_ids.ids)
    return message.text if message.HasField("text") else None


def _repetition(stopping: StoppingCriteria) -> RepetitionDetection | None:
    if not stopping.HasField("repetition_detection"):
        return None
    asked = stopping.repetition_detection
    return RepetitionDetection(
        max_pattern_size=asked.max_pattern_size,
        min_pattern_size=asked.min_pattern_size,
        min_count=asked.min_count,
    )


def _structure(decoding: DecodingParameters) -> StructuredFields | None:
    match decoding.WhichOneof("structured_output"):
        case None:
            return None
        case "choice":
            return StructuredFields(choice=list(decoding.choice.choices))
        case "json_object":
            return StructuredFields(json_object=True) if decoding.json_object else None
        case kind:
            return StructuredFields(**{kind: getattr(decoding, kind)})


def _check_supported(message: GenerateRequest) -> None:
    if message.media:
        raise InvalidRequest(
            "media are not supported here; send them in chat messages with penstock.v1.OpenAI/Chat",
            param="media",
            code="unsupported_value",
        )
    for name in ("kv_transfer_params", "ec_transfer_params"):
        if message.kv.HasField(name):
            raise InvalidRequest(
                f"kv.{name} is not supported; leave it out",
                param=f"kv.{name}",
                code="unsupported_value",
            )


def _candidates(asked: CandidateTokens, field: str) -> int:
    """How many of the likeliest; 0 where there are none to show."""
    kind = asked.WhichOneof("select")
    if kind is None:
        return 0
    if kind != "top_n":
        raise InvalidRequest(
            f"response.{field}.{kind} is not supported; use top_n",
            param=f"response.{field}",
            code="unsupported_value",
        )
    if asked.top_n > MAX_LOGPROBS:
        raise InvalidRequest(
            f"response.{field}.top_n is {asked.top_n}; at most {MAX_LOGPROBS} are allowed",
            param=f"response.{field}",
        )
    return asked.top_n


def _alternatives(logprobs: bool, candidates: int) -> int | None:
    # One, so that the rank of the likeliest token is known.
    return max(candidates, 1) if logprobs or candidates else None


def _shortest(value: float) -> float:
    """The decimal number that was meant by a float32: 0.7, and not 0.699999988."""
    short = float(f"{value:.7g}")
    return short if struct.pack("f", short) == struct.pack("f", value) else value
