"""Settings: admission, steps, and what one request may bring."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from penstock.config.plugins import SCHEDULING_POLICIES, check_named

PreemptionMode = Literal["auto", "recompute", "swap"]
SchedulingPolicy = Literal["fcfs", "priority", "fair"]
POLICIES = ("auto", *get_args(SchedulingPolicy))


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Admission and the step's budget."""

    max_num_seqs: Annotated[
        int, Meta(ge=1, le=4096, description="Sequences that may run in one step.")
    ] = 256
    max_num_batched_tokens: Annotated[
        int,
        Meta(
            ge=1,
            le=1_048_576,
            description="Token budget of one step; of an encoder, at least its longest input.",
        ),
    ] = 2048
    max_step_slowdown: Annotated[
        float,
        Meta(
            ge=0,
            description="How many times as long as its decodes alone a step with prompts may "
            "take, once it exceeds --short-step-ms; without decodes the limit is 0.25 "
            "s. 0: no limit.",
        ),
    ] = 2.0
    short_step_ms: Annotated[
        float,
        Meta(
            ge=1,
            le=10_000,
            description="Milliseconds that a step with prompts and decodes may always take; "
            "fewer: more even text, slower prompts.",
        ),
    ] = 50.0
    max_steps_in_flight: Annotated[
        int, Meta(ge=1, le=4, description="Steps sent before the result of the first one is back.")
    ] = 2
    preemption_mode: Annotated[
        PreemptionMode,
        Meta(
            description="KV of preempted sequences: recompute drops it; swap keeps it while there "
            "is room; auto: the cheaper way."
        ),
    ] = "auto"
    scheduling_policy: Annotated[
        str,
        Meta(
            description="Order of requests: fcfs by arrival; priority by the request's priority,"
            " which ages; fair by weighted shares of the tenants (API keys); auto: fair with a"
            " file of API keys, else fcfs.",
            extra={"built_in": POLICIES, "plugins": SCHEDULING_POLICIES},
        ),
    ] = "auto"
    tenants: Annotated[
        str,
        Meta(
            description="Limits of tenants: `NAME:weight=3,max_requests=8,highest_priority=-5;…`."
            " NAME: the first 32 hex digits of the API key's SHA-256, `anonymous` for no key, `*`"
            " for all others; default: none.",
            pattern=r"^([\w.*-]{1,64}(:[a-z_]+=-?\d{1,7}(,[a-z_]+=-?\d{1,7})*)?;?)*$",
            max_length=65_536,
        ),
    ] = ""
    max_waiting_requests: Annotated[
        int,
        Meta(
            ge=1,
            description="Requests that may wait for a slot or blocks; more are refused with 503.",
        ),
    ] = 4096
    max_waiting_tokens: Annotated[
        int, Meta(ge=1, description="Prompt tokens that may wait; more are refused with 503.")
    ] = 4_194_304
    max_carried_tokens: Annotated[
        int,
        Meta(
            ge=1,
            description="Tokens, also cached ones, of all sequences that start in one step; one "
            "may always start.",
        ),
    ] = 262_144
    max_encoded_rows: Annotated[
        int,
        Meta(
            ge=1,
            description="Embeddings of media that a step may encode, in addition to its tokens; "
            "one item always.",
        ),
    ] = 2048
    idle_sleep_minutes: Annotated[
        float,
        Meta(
            ge=0,
            le=100_000,
            description="Minutes without a request after which the model frees its memory until"
            " the next one; 0: never.",
        ),
    ] = 0.0
    idle_sleep_level: Annotated[
        int,
        Meta(
            ge=1,
            le=2,
            description="What idle_sleep_minutes frees: 1: the KV cache, and a GPU's weights; "
            "2: all weights too.",
        ),
    ] = 1

    resume_grace_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Seconds for which a resumable answer goes on being computed, and is "
            "kept, when its gateway or client is gone; 0: it is computed again.",
        ),
    ] = 10.0
    audit_share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Share of answers that an idle engine core computes again, without its "
            "caches, and compares bit by bit.",
        ),
    ] = 0.0

    @property
    def policy(self) -> str:
        """The policy's name. `auto` is fcfs here: who knows of API keys has made it fair."""
        return "fcfs" if self.scheduling_policy == "auto" else self.scheduling_policy

    def __post_init__(self) -> None:
        name = self.scheduling_policy
        check_named("scheduling_policy", name, POLICIES, SCHEDULING_POLICIES)


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on one request."""

    max_request_tokens: Annotated[
        int,
        Meta(
            ge=1,
            description="Tokens of all of a request's sequences: n (or beam_width) times its "
            "prompt and max_tokens. One may always fill the context.",
        ),
    ] = 4_194_304
    max_logit_bias: Annotated[int, Meta(ge=0, le=1024, description="Token ids in logit_bias.")] = (
        1024
    )
    max_allowed_token_ids: Annotated[
        int, Meta(ge=1, le=262_144, description="Token ids in allowed_token_ids.")
    ] = 262_144
    max_bad_words_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=262_144,
            description="Token ids in all of bad_words, each encoded with and without a space"
            " before it.",
        ),
    ] = 16_384
