"""Settings: how tokens are drafted ahead of the model."""

from __future__ import annotations

import typing
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.errors import InvalidRequest
from penstock.model.speculation import LOOKUPS, WITH_MODEL, DraftMethod, SpeculativeConfig

OFF = ("off", "none", "null")
"""Words that stand in place of an object to have nothing drafted."""
AUTO = "auto"
"""The word that stands in place of an object to have tokens drafted where that is known to cost
nothing."""

SERVED: tuple[DraftMethod, ...] = typing.get_args(DraftMethod)
ALIASES: dict[str, DraftMethod] = dict.fromkeys(
    (
        *("deepseek_mtp", "glm4_moe_mtp", "glm4_moe_lite_mtp"),
        *("mimo_mtp", "qwen3_next_mtp", "qwen3_5_mtp", "step3p5_mtp", "gemma4_mtp"),
    ),
    "mtp",
)
"""vLLM's names of methods, by ours."""
MAX_DRAFT = 64
MAX_RUN = 64
NAME = "speculative_config"


class SpeculativeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens that are drafted ahead of the model. They change no output."""

    speculative_config: Annotated[
        str,
        Meta(
            description="JSON object with `method` (ngram, suffix, draft_model, eagle3, mtp, or a "
            "list), `num_speculative_tokens`, `prompt_lookup_min`, "
            "`prompt_lookup_max` and `model`; auto: suffix on CPUs, for models "
            "without recurrent layers; off: none.",
            max_length=65_536,
        ),
    ] = AUTO

    @property
    def config(self) -> SpeculativeConfig | None:
        """What the setting says; None: nothing is drafted. Raises InvalidRequest."""
        text = self.speculative_config.strip()
        if text.lower() in OFF:
            return None
        if text.lower() == AUTO:
            return SpeculativeConfig(method="suffix", automatic=True)
        try:
            given = msgspec.json.decode(text, type=dict[str, Any])
            if "method" not in given and given.get("model"):
                given["method"] = "draft_model"  # As in vLLM.
            if "before" in given:
                raise _refused("before is not known; a list of methods says their order")
            if "automatic" in given:
                raise _refused("automatic is not known; auto in place of an object says that")
            config = msgspec.convert(given | _methods(given), SpeculativeConfig)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            names = (each.name for each in msgspec.structs.fields(SpeculativeConfig))
            fields = ", ".join(name for name in names if name not in ("before", "automatic"))
            allowed = f"auto, off, or a JSON object with {fields}"
            raise _refused(f"{error}; allowed are {allowed}") from None
        _check(config)
        return config

    def with_model(self, folder: str) -> SpeculativeSettings:
        """Returns the same with another `model`. Raises InvalidRequest."""
        config = self.config
        if config is None or config.automatic:
            return self
        said = msgspec.to_builtins(config) | {"model": folder}
        del said["automatic"]
        said["method"] = [*said.pop("before"), config.method]
        return SpeculativeSettings(speculative_config=msgspec.json.encode(said).decode())


def _methods(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields `method` and `before`: of methods in a list, the last one and the others.
    Raises InvalidRequest."""
    asked = given.get("method", SpeculativeConfig().method)
    names = asked if isinstance(asked, list) else [asked]
    for name in names or [asked]:
        if name not in SERVED and (not isinstance(name, str) or name not in ALIASES):
            raise _refused(f"method {name!r} is not served; allowed are {', '.join(SERVED)}")
    methods = [ALIASES.get(name, name) for name in names]
    return {"method": methods[-1], "before": methods[:-1]}


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
    if config.model and config.method in LOOKUPS:
        raise _refused(f"method {config.method} computes nothing and has no separate model")
    if config.method in WITH_MODEL and not config.model:
        raise _refused(f"method {config.method} needs a draft model or head, as `model`")
    order = (*config.before, config.method)
    if len(set(order)) < len(order) or not LOOKUPS.issuperset(config.before):
        raise _refused(
            f"methods in order of preference are {', '.join(order)}; each is allowed once, and"
            f" only the last may be another than {', '.join(sorted(LOOKUPS))}"
        )


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(f"{NAME}: {reason}", param=NAME)
