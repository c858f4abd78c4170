"""Settings: how tokens are drafted ahead of the model."""

from __future__ import annotations

import typing
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.errors import InvalidRequest
from penstock.speculation import DraftMethod, SpeculativeConfig

OFF = ("off", "none", "null")
"""What is said in place of an object to have nothing drafted."""

SERVED: tuple[DraftMethod, ...] = ("ngram", "suffix", "draft_model")
MAX_DRAFT = 64
MAX_RUN = 64
NAME = "speculative_config"


class SpeculativeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens that are drafted ahead of the model. They change no output."""

    speculative_config: Annotated[
        str,
        Meta(
            description="JSON object that says what drafts tokens (`method`: ngram, suffix or"
            " draft_model), how many at most (`num_speculative_tokens`), how long the runs of"
            " tokens are that it looks for (`prompt_lookup_min`, `prompt_lookup_max`), and which"
            " `model` drafts; or off: nothing is drafted.",
            max_length=65_536,
        ),
    ] = "off"

    @property
    def config(self) -> SpeculativeConfig | None:
        """What the setting says; None: nothing is drafted. Raises InvalidRequest."""
        text = self.speculative_config.strip()
        if text.lower() in OFF:
            return None
        try:
            given = msgspec.json.decode(text, type=dict[str, Any])
            if "method" not in given and given.get("model"):
                given["method"] = "draft_model"  # As in vLLM.
            _check_method(given.get("method", SpeculativeConfig().method))
            config = msgspec.convert(given, SpeculativeConfig)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            fields = ", ".join(each.name for each in msgspec.structs.fields(SpeculativeConfig))
            raise _refused(f"{error}; allowed are off, or a JSON object with {fields}") from None
        _check(config)
        return config

    def with_model(self, folder: str) -> SpeculativeSettings:
        """Returns the same with another `model`. Raises InvalidRequest."""
        config = self.config
        if config is None:
            return self
        config = msgspec.structs.replace(config, model=folder)
        return SpeculativeSettings(speculative_config=msgspec.json.encode(config).decode())


def _check_method(method: object) -> None:
    if method not in SERVED:
        raise _refused(f"method {method!r} is not served; allowed are {', '.join(SERVED)}")


def _check(config: SpeculativeConfig) -> None:
    if not 1 <= config.num_speculative_tokens <= MAX_DRAFT:
        raise _refused(
            f"num_speculative_tokens is {config.num_speculative_tokens}; allowed are 1 to"
            f" {MAX_DRAFT}"
        )
    least, most = config.prompt_lookup_min, config.prompt_lookup_max
    if not 1 <= least <= most <= MAX_RUN:
        raise _refused(
            f"prompt_lookup_min is {least} and prompt_lookup_max {most}; allowed are 1 to"
            f" {MAX_RUN}, the first not above the second"
        )
    if config.model and config.method in typing.get_args(DraftMethod)[:2]:
        raise _refused(f"method {config.method} computes nothing and has no model")
    if config.method == "draft_model" and not config.model:
        raise _refused("method draft_model needs the model that drafts, as `model`")


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(f"{NAME}: {reason}", param=NAME)
