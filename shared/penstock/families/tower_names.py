"""How files call the tensors of vision and audio towers: data of each family, and of each kind of
mmproj files; and the names that several have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

TowerNames = dict[str, str | None]
"""What a name in a file begins with, up to a dot or its end -> what ours begins with. `*` stands
for a number. The most parts that fit count; what follows them stays. None: nothing reads the
tensor. A name may have `model.` in front."""


def under(begin: str, names: TowerNames, ours: str = "") -> TowerNames:
    """Returns `names` with `begin` in front, and ours with `ours`. What else begins so keeps the
    rest of its name."""
    return {begin: ours} | {
        _joined(begin, theirs): None if inner is None else _joined(ours, inner)
        for theirs, inner in names.items()
    }


def _joined(begin: str, rest: str) -> str:
    return f"{begin}.{rest}" if begin and rest else begin or rest


def namer(names: TowerNames, *, stays: bool = False) -> Callable[[str], str | None]:
    """Returns what maps a file's name to ours; None: of a tensor that isn't needed, or of another
    part of the model. stays: whether a name that `names` don't know stays as it is."""
    keys = sorted(names, key=lambda key: (-key.count("."), key.count("*")))
    begins = re.compile(
        rf"(?:model\.)?(?:{'|'.join(f'({_pattern(key)})' for key in keys)})(?:\.|$)"
    )
    groups, group = {}, 1
    for key in keys:
        groups[group] = names[key]
        group += 1 + key.count("*")

    def ours(name: str) -> str | None:
        match = begins.match(name)
        if match is None or match.lastindex is None:
            return name if stays else None
        found = groups[match.lastindex]
        if found is None:
            return None
        return _joined(_numbered(found, match.groups()[match.lastindex :]), name[match.end() :])

    return ours


def file_names(name: str, names: TowerNames) -> list[str]:
    """Returns the names that a tensor of ours may have in files, without `model.` in front."""
    ours_of, found = namer(names), dict[str, int]()
    for theirs, ours in names.items():
        if ours is None:
            continue
        match = re.match(rf"{_pattern(ours)}(?:\.|$)" if ours else "", name)
        if match is not None:
            own = _joined(_numbered(theirs, match.groups()), name[match.end() :])
            if ours_of(own) == name:
                found[own] = len(match[0].split("."))
    most = max(found.values(), default=0)
    return [own for own, parts in found.items() if parts == most]


def beginning(keys: Collection[str]) -> re.Pattern[str]:
    """Returns what matches the names that begin with one of these keys (see TowerNames)."""
    parts = {key: key.split(".") for key in keys}
    shortest = {
        key
        for key, own in parts.items()
        if not any(".".join(own[:end]) in parts for end in range(1, len(own)))
    }
    return re.compile(rf"(?:model\.)?(?:{'|'.join(map(_pattern, sorted(shortest)))})(?:\.|$)")


def _pattern(key: str) -> str:
    return re.escape(key).replace(r"\*", r"(\d+)")


def _numbered(name: str, numbers: tuple[str | None, ...]) -> str:
    for number in numbers[: name.count("*")]:
        name = name.replace("*", number or "", 1)
    return name


FEED_FORWARD: TowerNames = {"mlp.fc1": "up_proj", "mlp.fc2": "down_proj"}
IN_LLAMA: TowerNames = {
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
    "self_attn": "",
    "self_attn.o_proj": "out_proj",
    "mlp": "",
    **FEED_FORWARD,
}
"""Modules of a layer, as Llama's are called."""
IN_CLIP: TowerNames = {
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "self_attn": "",
    **FEED_FORWARD,
}
"""Modules of one of CLIP's layers, or SigLIP's."""
CLIP: TowerNames = {
    **{f"embeddings.{part}": part for part in ("class_embedding", "patch_embedding")},
    "embeddings.position_embedding": "position_embedding",
    "embeddings.position_ids": None,  # a buffer that old checkpoints saved
    "pre_layrnorm": "first_norm",
    "post_layernorm": "last_norm",
    **under("encoder.layers.*", IN_CLIP, "layers.*"),
}
"""CLIP's tower, or SigLIP's."""


def tower(names: TowerNames, begin: str = "vision_tower") -> TowerNames:
    """A tower's names within a model, for which transformers 5 leaves out a module around it."""
    return under(begin, names) | under(f"{begin}.vision_model", names)


CLIP_TOWER = tower(CLIP)
CLIP_MODEL = tower(CLIP, "vision_model")
SPACE: TowerNames = {**CLIP_MODEL, "visual_projection": "head.projection"}
"""Names of the vision towers of CLIP and SigLIP models."""
TWO: TowerNames = {"linear_1": "1", "linear_2": "2"}
"""Two products, as most projectors have them."""
PROJECTOR = under("multi_modal_projector", TWO, "projector")
IMAGE_NEWLINE: TowerNames = {"image_newline": "projector.newline"}
IN_BLOCK: TowerNames = {
    "attn": "",
    **{f"attn.{part}": f"{part}_proj" for part in "qkv"},
    "attn.proj": "out_proj",
    "mlp": "",
    **FEED_FORWARD,
    "mlp.linear_fc1": "up_proj",
    "mlp.linear_fc2": "down_proj",
}
"""Modules of a block, as timm and Qwen2-VL call them."""
MERGER: TowerNames = {
    "ln_q": "norm",
    "mlp.0": "1",
    "mlp.2": "2",
    "linear_fc1": "1",
    "linear_fc2": "2",
}
QWEN = under(
    "visual",
    {
        "patch_embed.proj": "patch_embedding",
        "pos_embed": "position_embedding",
        "rotary_pos_emb": None,  # a buffer
        **under("blocks.*", IN_BLOCK, "layers.*"),
        **under("merger", MERGER, "projector"),
        **under("deepstack_merger_list.*", MERGER, "projector.deepstack.*"),
        **under("merger_list.*", MERGER, "projector.deepstack.*"),
    },
)
"""Names of the vision towers of Qwen2-VL and its successors."""
SPEAKS = ("talker", "token2wav", "code2wav")
"""What Qwen2.5-Omni and Qwen3-Omni speak with."""
ENCODER: TowerNames = {
    "embed_positions": "position_embedding",
    "layer_norm": "last_norm",
    "ln_post": "last_norm",
    **under(
        "layers.*",
        {
            "self_attn": "",
            "self_attn_layer_norm": "norm1",
            "final_layer_norm": "norm2",
            "fc1": "up_proj",
            "fc2": "down_proj",
        },
        "layers.*",
    ),
}
"""Whisper's encoder, and those with its layers."""
WHISPER = under("encoder", ENCODER)
"""Names of Whisper's encoder."""
AUDIO_TOWER = under("audio_tower", ENCODER)
EMBEDDER: TowerNames = {
    "hard_embedding_norm": "own_norm",
    "soft_embedding_norm": "norm",
    "embedding_projection": "",
}
"""Names of the tensors after Gemma 3n's towers."""
