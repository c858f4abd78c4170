"""What a PEFT folder's adapter_config.json says of its factors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.adapters.adapter import (
    UnfitAdapter,
)
from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields

_WHERE = "adapter_config.json"
_ENDING = r".*\."
"""How PEFT begins the pattern of a parameter's name when it has converted older files."""
_NAME = re.compile(rf"(?:\^|{re.escape(_ENDING)})?[A-Za-z0-9_.]+")
MAX_PATTERNS = 4096

_WITHOUT_EFFECT = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "corda_config", "eva_config"),
        *("exclude_modules", "inference_mode", "layers_pattern", "layers_to_transform"),
        *("loftq_config", "lora_dropout", "megatron_core", "peft_version", "qalora_group_size"),
        *("revision", "runtime_config", "target_modules", "task_type", "modules_to_save"),
    }
)
"""How the adapter was trained, and how its modules were chosen."""
_READ = frozenset(
    {
        *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"),
        *("bias", "init_lora_weights", "use_dora", "ensure_weight_tying", "target_parameters"),
    }
)
_CHANGES_THE_MODEL = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to initialise factors that change the model's own weights as well."""


@dataclass(frozen=True)
class PeftConfig:
    """The settings that the numbers depend on."""

    rank: int
    alpha: float
    root: bool = False
    """Whether the scale is alpha divided by the root of the rank (Kalajdzievski, "rsLoRA",
    2023)."""
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    """Modules' own alphas, by their names or endings of them."""
    base: str = ""
    dora: bool = False
    """Whether the rows of what is added up get lengths of their own (Liu et al., "DoRA", 2024)."""
    tied: bool = False
    """Whether a whole embedding is meant as the head, too."""
    parameters: tuple[str, ...] = ()
    """Names of parameters, or endings of them, that factors are for instead of a module's
    weight."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that the adapter's modules may have, ascending."""
        return tuple(sorted({self.rank, *self.rank_pattern.values()}))

    def rank_of(self, module: str) -> int:
        return _matching(self.rank_pattern, module, self.rank)

    def scale(self, module: str, rank: int) -> float:
        alpha = _matching(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.root else rank)


_Number = TypeVar("_Number", int, float)


def _matching(patterns: Mapping[str, _Number], module: str, otherwise: _Number) -> _Number:
    return next((own for each, own in patterns.items() if _matches(each, module)), otherwise)


def _matches(pattern: str, module: str) -> bool:
    if pattern.startswith("^"):
        return module == pattern[1:]
    if pattern.startswith(_ENDING):
        return module.endswith(f".{pattern.removeprefix(_ENDING)}")
    return module == pattern or module.endswith(f".{pattern}")


def read_peft_config(values: object) -> PeftConfig:
    """Raises UnfitAdapter for settings that aren't served."""
    if not isinstance(values, dict):
        raise UnfitAdapter(f"{_WHERE} is not a JSON object")
    fields = Fields(values, _WHERE)
    try:
        kind = fields.text("peft_type")
        if kind != "LORA":
            raise UnfitAdapter(f"the adapter's peft_type is {kind}; LORA is served")
        _refuse_others(values)
        return PeftConfig(
            rank=fields.integer("r"),
            alpha=fields.number("lora_alpha"),
            root=fields.flag("use_rslora", default=False),
            rank_pattern=_by_name(values, "rank_pattern", int),
            alpha_pattern=_by_name(values, "alpha_pattern", float),
            base=fields.text("base_model_name_or_path", default=""),
            dora=fields.flag("use_dora", default=False),
            tied=fields.flag("ensure_weight_tying", default=False),
            parameters=_parameters(values.get("target_parameters") or []),
        )
    except UnsupportedModel as error:
        raise UnfitAdapter(str(error)) from None


def _refuse_others(values: Mapping[str, Any]) -> None:
    if values.get("bias") not in (None, "none"):
        raise UnfitAdapter(f"the adapter's bias is {values['bias']!r}; none is served")
    begun = values.get("init_lora_weights")
    if isinstance(begun, str) and begun.startswith(_CHANGES_THE_MODEL):
        raise UnfitAdapter(
            f"the adapter's init_lora_weights is {begun}, which changes the model's own weights; "
            "convert it to a plain LoRA adapter, as PEFT's save_pretrained does"
        )
    for key, value in values.items():
        if key not in _WITHOUT_EFFECT | _READ and value not in (None, False, "", [], {}):
            raise UnfitAdapter(f"the adapter's setting {key} is {_short(value)}: not served")


def _parameters(given: object) -> tuple[str, ...]:
    named = isinstance(given, list) and all(isinstance(each, str) for each in given)
    if not isinstance(given, list) or not named or len(given) > MAX_PATTERNS:
        raise UnfitAdapter(
            f"the adapter's target_parameters is not a list of at most {MAX_PATTERNS} names"
        )
    return tuple(given)


def _by_name(values: Mapping[str, Any], key: str, kind: type) -> dict[str, Any]:
    found = values.get(key) or {}
    if not isinstance(found, dict) or len(found) > MAX_PATTERNS:
        raise UnfitAdapter(f"the adapter's {key} is not an object of at most {MAX_PATTERNS} names")
    for name, value in found.items():
        if not _NAME.fullmatch(name):
            raise UnfitAdapter(
                f"the adapter's {key} has {_short(name)}; only names of modules are supported, not "
                "patterns"
            )
        if type(value) is not int and not (kind is float and type(value) is float):
            raise UnfitAdapter(f"the adapter's {key} gives {name} {_short(value)}")
    read = Fields(found, f"{_WHERE}, {key}")
    return {name: read.number(name) if kind is float else read.integer(name) for name in found}


def _short(value: object) -> str:
    said = repr(value)
    return said if len(said) <= 80 else said[:79] + "…"
