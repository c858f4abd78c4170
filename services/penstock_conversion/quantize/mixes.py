"""Which type each tensor of a model gets: the mixes that GGUF files are called by, as llama.cpp has
them, so that a file is as large as one of the same name from there.

Source: llama.cpp's quantisation tool (src/llama-quant.cpp), whose choices these are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.errors import InvalidRequest
from penstock.formats.gguf_types import BLOCKS


@dataclass(frozen=True)
class MixFacts:
    """What of a model the choice depends on."""

    layers: int
    shares: int
    """Query heads for each KV head."""
    experts: int
    tied: bool
    """Whether the embedding is the head's matrix too."""
    weighted: bool
    """Whether there are importances of columns."""


@dataclass(frozen=True)
class LayerPlace:
    """A tensor's layer, and how many of its kind come before it."""

    layer: int
    facts: MixFacts

    @property
    def first_eighth(self) -> bool:
        return self.layer < self.facts.layers // 8

    @property
    def first_sixteenth(self) -> bool:
        return self.layer < self.facts.layers // 16

    @property
    def chosen(self) -> bool:
        """The first and the last eighth of the layers, and every third one between them."""
        eighth = self.facts.layers // 8
        last = self.layer >= 7 * self.facts.layers // 8
        return self.layer < eighth or last or (self.layer - eighth) % 3 == 2


Choice = Callable[[LayerPlace], str]


@dataclass(frozen=True)
class Mix:
    """A file's name for the types of its tensors. values, down, output: of attn_v or
    attn_qkv, of ffn_down and of attn_output, where they have another type than the others."""

    file_type: int
    """general.file_type."""
    base: str
    values: Choice | None = None
    down: Choice | None = None
    output: str = ""


def _more_if(more: str, less: str, when: Callable[[LayerPlace], bool]) -> Choice:
    return lambda place: more if when(place) else less


def _chosen(place: LayerPlace) -> bool:
    return place.chosen


def _guarded(more: str, less: str) -> Choice:
    return _more_if(more, less, lambda at: at.facts.weighted and at.first_eighth)


def _by_shares(more: str, less: str) -> Choice:
    return _more_if(more, less, lambda at: at.facts.shares >= 4)


MIXES: Mapping[str, Mix] = {
    "F32": Mix(0, "F32"),
    "F16": Mix(1, "F16"),
    "BF16": Mix(32, "BF16"),
    "Q8_0": Mix(7, "Q8_0"),
    "Q6_K": Mix(18, "Q6_K"),
    "Q5_K_M": Mix(
        17,
        "Q5_K",
        values=_more_if("Q6_K", "Q5_K", _chosen),
        down=_more_if("Q6_K", "Q5_K", _chosen),
    ),
    "Q5_K_S": Mix(16, "Q5_K"),
    "Q5_1": Mix(9, "Q5_1"),
    "Q5_0": Mix(8, "Q5_0", down=_guarded("Q5_1", "Q5_0")),
    "Q4_K_M": Mix(
        15,
        "Q4_K",
        values=_more_if("Q6_K", "Q4_K", _chosen),
        down=_more_if("Q6_K", "Q4_K", _chosen),
    ),
    "Q4_K_S": Mix(
        14,
        "Q4_K",
        values=_more_if("Q5_K", "Q4_K", lambda at: at.layer < 4),
        down=_more_if("Q5_K", "Q4_K", lambda at: at.first_eighth),
    ),
    "Q4_1": Mix(3, "Q4_1"),
    "Q4_0": Mix(2, "Q4_0", down=_guarded("Q4_1", "Q4_0")),
    "Q3_K_L": Mix(13, "Q3_K", values=lambda _: "Q5_K", down=lambda _: "Q5_K", output="Q5_K"),
    "Q3_K_M": Mix(
        12,
        "Q3_K",
        values=_more_if("Q5_K", "Q4_K", lambda at: at.layer < 2),
        down=_more_if("Q5_K", "Q4_K", lambda at: at.first_sixteenth),
        output="Q4_K",
    ),
    "Q3_K_S": Mix(11, "Q3_K"),
    "Q2_K": Mix(
        10, "Q2_K", values=_by_shares("Q4_K", "Q3_K"), down=lambda _: "Q3_K", output="Q3_K"
    ),
}
"""The mixes, by the names that `--to` takes, largest first."""

FALLBACKS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""What a matrix gets whose rows are no multiple of 256 numbers."""


def find_mix(name: str) -> Mix:
    """Raises InvalidRequest for a name that isn't known."""
    found = MIXES.get(name.upper())
    if found is None:
        raise InvalidRequest(f"--to is {name!r}; allowed are {', '.join(MIXES)}")
    return found


_KEPT = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel"),
    *("per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight", "position_embd"),
    *("token_types", "indexer.k_proj.weight", "indexer.q_proj.weight", "rope_f", ".patch_embd"),
)
"""Parts of names of matrices that stay as they are: small ones, and those that choose."""


def is_quantised(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of a GGUF file gets a type of the mix; the others stay floats."""
    matrix = len(shape) >= 2 and name.endswith("weight")
    return matrix and not any(each in name for each in _KEPT)


_LAYER = re.compile(r"blk\.(\d+)\.")
EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
HEAD = "output.weight"


def tensor_type(name: str, shape: tuple[int, ...], mix: Mix, facts: MixFacts) -> str:
    """The type of a tensor for which `is_quantised` holds; F16 where no type's blocks fit its
    rows."""
    if mix.base not in ("F32", "F16", "BF16"):
        return _fitting(_wanted(name, shape, mix, facts), shape[-1])
    return mix.base


def _wanted(name: str, shape: tuple[int, ...], mix: Mix, facts: MixFacts) -> str:
    if name == HEAD or (facts.tied and name in EMBEDDINGS):
        fits = shape[-1] % BLOCKS[mix.base].elements == 0
        return "Q6_K" if fits and mix.base != "Q8_0" else "Q8_0"
    if any(part in name for part in ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight")):
        return _of_values(name, mix, facts)
    if facts.experts == 8 and "attn_k.weight" in name:
        return "Q8_0"
    if "ffn_down" in name and mix.down is not None:
        return mix.down(_place(name, facts))
    if "attn_output.weight" in name:
        return _of_output(mix, facts)
    return mix.base


def _of_values(name: str, mix: Mix, facts: MixFacts) -> str:
    if facts.experts == 8:
        return "Q8_0"
    found = mix.base if mix.values is None else mix.values(_place(name, facts))
    large = facts.layers == 80 and facts.shares > 1  # 70B: small value matrices
    return "Q5_K" if large and found in ("Q3_K", "Q4_K") else found


def _of_output(mix: Mix, facts: MixFacts) -> str:
    if facts.experts == 8:
        small = mix.base in ("Q2_K", "Q3_K", "Q4_K") and mix is not MIXES["Q3_K_L"]
        return "Q5_K" if small else mix.base
    return mix.output or mix.base


def _place(name: str, facts: MixFacts) -> LayerPlace:
    found = _LAYER.match(name)
    return LayerPlace(0 if found is None else int(found[1]), facts)


def _fitting(kind: str, columns: int) -> str:
    if columns % BLOCKS[kind].elements:
        kind = FALLBACKS.get(kind, kind)
    return kind if columns % BLOCKS[kind].elements == 0 else "F16"
