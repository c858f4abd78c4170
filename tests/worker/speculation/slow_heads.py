"""Heads that draft as slow and obvious torch, after the published definitions, beside transformers'
own layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCAB, HIDDEN, LAYERS, POSITIONS = 301, 64, 4, 256
LINEAR, FULL, SLIDING = "linear_attention", "full_attention", "sliding_attention"


def circle() -> tuple[Tensor, Tensor]:
    """Returns embeddings of all ids, [vocab, hidden], and a matrix that maps each to the next
    one's."""
    generator = torch.Generator().manual_seed(4)
    turns = 1 + torch.randperm(VOCAB // 2, generator=generator)[: HIDDEN // 2]
    angles = 2 * torch.pi * turns / VOCAB
    each = torch.arange(VOCAB)[:, None] * angles
    step = torch.zeros(HIDDEN, HIDDEN)
    cos, sin, half = angles.cos().diag(), angles.sin().diag(), HIDDEN // 2
    step[:half, :half], step[:half, half:] = cos, -sin
    step[half:, :half], step[half:, half:] = sin, cos
    return torch.cat((each.cos(), each.sin()), 1), step


@dataclass
class Reference:
    """A model by transformers' layers, without any cache."""

    hub: Any
    layers: int = LAYERS
    steps: dict[str, Any] = field(default_factory=dict)

    def through(self, hidden: Tensor, layers: Any) -> list[Tensor]:
        """Returns [rows, hidden] in front of the first layer and behind each of them."""
        positions = torch.arange(hidden.shape[0])[None]
        found = [hidden]
        for layer in layers:
            linear = getattr(layer, "block_type", FULL) == LINEAR
            made = layer(
                found[-1][None],
                attention_mask=None if linear else self._mask(layer, len(hidden)),
                position_ids=positions,
                position_embeddings=self._turned(layer, hidden, positions),
            )
            found.append((made[0] if isinstance(made, tuple) else made)[0])
        return found

    def _mask(self, layer: Any, rows: int) -> Tensor:
        least = torch.finfo(torch.float32).min
        later = torch.full((1, 1, rows, rows), least).triu(1)
        window = getattr(layer.self_attn, "sliding_window", None)
        return later if window is None else later + torch.full_like(later, least).tril(-window)

    def _turned(self, layer: Any, hidden: Tensor, positions: Tensor) -> Any:
        rotary = self.hub.model.rotary_emb
        if hasattr(rotary, "layer_types"):
            kind = getattr(layer, "attention_type", None) or layer.self_attn.layer_type
            return rotary(hidden[None], positions, kind)
        # Where pictures have positions in three directions, a text's are the same in each.
        three = hasattr(rotary, "mrope_section")
        return rotary(hidden[None], positions.expand(3, *positions.shape) if three else positions)

    def embedded(self, tokens: list[int]) -> Tensor:
        return self.hub.model.embed_tokens(torch.tensor(tokens))

    def hidden(self, tokens: list[int]) -> list[Tensor]:
        return self.through(self.embedded(tokens), self.hub.model.layers[: self.layers])

    def next(self, tokens: list[int]) -> int:
        """The likeliest token behind these."""
        last = self.hub.model.norm(self.hidden(tokens)[-1][-1])
        return int(self.hub.lm_head(last).argmax())


HeadRows = Callable[[list[int], Tensor], tuple[int, Tensor]]
"""Maps the tokens behind, and hidden states of as many rows, to the last row's draft and to what
further drafts are made of, of all rows."""


def drafts_of(head: Eagle3 | MTP, tokens: list[int], hidden: Tensor, most: int) -> list[int]:
    """What a head says greedily behind `tokens`, of which all but the last have hidden states. All
    of its rows anew for each draft.

    Row i of layer k, counted from 0, is made of row i of the layer before, or of the model where
    layers aren't chained, and of token i + k + 1. When all layers have said a token, the last one
    goes on from its own last row."""
    drafts: list[int] = []
    layers, results = head.layers, hidden
    for number in range(most):
        if number < len(layers):
            hidden = results if head.chained else hidden
            behind = [*tokens[number + 1 :], *drafts]
        else:
            hidden, behind = torch.cat((hidden, results[-1:])), [*behind, drafts[-1]]
        draft, results = layers[min(number, len(layers) - 1)](behind, hidden)
        drafts.append(draft)
    return drafts


def rms(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class Eagle3:
    """A head after Li et al., "EAGLE-3", 2025: one layer whose attention reads the norms of the
    token's embedding and of the hidden state side by side."""

    chained = True

    def __init__(self, reference: Reference, seed: int = 5, *, own: int = 96, normed: bool = False):
        """`own`: ids that it may draft. `normed`: see norm_before_residual."""
        self.reference = reference
        self.normed = normed
        heads, keys, size, inner = 4, 2, 16, 48
        shapes = {
            "fc": (HIDDEN, 3 * HIDDEN),
            "midlayer.self_attn.q_proj": (heads * size, 2 * HIDDEN),
            "midlayer.self_attn.k_proj": (keys * size, 2 * HIDDEN),
            "midlayer.self_attn.v_proj": (keys * size, 2 * HIDDEN),
            "midlayer.self_attn.o_proj": (HIDDEN, heads * size),
            "midlayer.mlp.gate_proj": (inner, HIDDEN),
            "midlayer.mlp.up_proj": (inner, HIDDEN),
            "midlayer.mlp.down_proj": (HIDDEN, inner),
            "midlayer.hidden_norm": (HIDDEN,),
            "midlayer.input_layernorm": (HIDDEN,),
            "midlayer.post_attention_layernorm": (HIDDEN,),
            "norm": (HIDDEN,),
            "lm_head": (own, HIDDEN),
        }
        generator = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, Tensor] = {}
        for name, shape in shapes.items():
            values = torch.randn(shape, generator=generator)
            scaled = values * 1.6 / shape[-1] ** 0.5 if len(shape) > 1 else 1 + values / 5
            self.tensors[f"{name}.weight"] = scaled
        self.ids = torch.randperm(VOCAB, generator=generator)[:own].sort().values
        self.config = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_act": "silu",
            "vocab_size": VOCAB,
            "draft_vocab_size": own,
            "hidden_size": HIDDEN,
            "intermediate_size": inner,
            "num_hidden_layers": 1,
            "num_attention_heads": heads,
            "num_key_value_heads": keys,
            "head_dim": size,
            "max_position_embeddings": POSITIONS,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10_000.0,
            "norm_before_residual": normed,
        }

    def write(self, folder: Path) -> None:
        """Writes the head's files as SpecForge does."""
        folder.mkdir()
        own = torch.arange(len(self.ids))
        mask = torch.zeros(VOCAB, dtype=torch.bool)
        mask[self.ids] = True
        tables = {"d2t": self.ids - own, "t2d": mask}
        save_file(self.tensors | tables, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))

    def count_on(self) -> None:
        """Makes the head count on, by one draft only, as a hidden state stands for the token
        before."""
        embeddings, step = circle()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            self._layer(name).mul_(0.1)
        fc = self.tensors["fc.weight"]
        fc.mul_(0.02)[:, -HIDDEN:] += step
        self.tensors["norm.weight"].fill_(1.0)
        self.tensors["lm_head.weight"].copy_((embeddings @ step)[self.ids])

    def taken(self, tokens: list[int]) -> Tensor:
        found = self.reference.hidden(tokens)
        layers = (2, LAYERS // 2, LAYERS - 3)
        joined = torch.cat([found[number] for number in layers], -1)
        return joined @ self.tensors["fc.weight"].T

    def _layer(self, name: str) -> Tensor:
        return self.tensors[f"midlayer.{name}.weight"]

    def rows(self, tokens: list[int], hidden: Tensor) -> tuple[int, Tensor]:
        normed = rms(hidden, self._layer("hidden_norm"))
        embedded = rms(self.reference.embedded(tokens), self._layer("input_layernorm"))
        residual = normed if self.normed else hidden
        residual = residual + self._attention(torch.cat((embedded, normed), -1))
        inner = rms(residual, self._layer("post_attention_layernorm"))
        gate = torch.nn.functional.silu(inner @ self._layer("mlp.gate_proj").T)
        made = gate * (inner @ self._layer("mlp.up_proj").T)
        found = residual + made @ self._layer("mlp.down_proj").T
        logits = rms(found[-1], self.tensors["norm.weight"]) @ self.tensors["lm_head.weight"].T
        return int(self.ids[int(logits.argmax())]), found

    @property
    def layers(self) -> list[HeadRows]:
        return [self.rows]

    def _attention(self, both: Tensor) -> Tensor:
        rows, size = both.shape[0], 16
        q, k, v = (
            (both @ self._layer(f"self_attn.{name}_proj").T).view(rows, -1, size).transpose(0, 1)
            for name in "qkv"
        )
        q, k = (_turned(each) for each in (q, k))
        k, v = (each.repeat_interleave(q.shape[0] // each.shape[0], 0) for each in (k, v))
        scores = q @ k.transpose(1, 2) / size**0.5
        scores = scores + torch.full((rows, rows), -1e30).triu(1)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(rows, -1)
        return mixed @ self._layer("self_attn.o_proj").T


def _turned(x: Tensor) -> Tensor:
    """Rotary positions, [heads, rows, size], with halves apart."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None] * 10_000.0 ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat(
        (
            first * angles.cos() - second * angles.sin(),
            second * angles.cos() + first * angles.sin(),
        ),
        -1,
    )


class MTPLayer:
    """A layer of a head after DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 2.2: one
    behind the model's last, by transformers' code, and what is in front of it."""

    plus: ClassVar = 0.0
    """Is added to the weights of norms."""
    hidden_first: ClassVar = False
    """Whether what joins reads the hidden state in front of the embedding."""
    normed: ClassVar = False
    """Whether further drafts are made of what is behind its norm."""
    chained: ClassVar = True
    """Whether further layers read what the layer before them gives."""
    normed_input: ClassVar = True
    """Whether the first layer reads what is behind the model's last norm."""

    def __init__(self, reference: Reference, number: int) -> None:
        """`number`: of the head's layers, from 0."""
        self.reference = reference
        self.number = number
        generator = torch.Generator().manual_seed(5 + number)
        shapes = {
            "enorm": (HIDDEN,),
            "hnorm": (HIDDEN,),
            "shared_head.norm": (HIDDEN,),
            "eh_proj": (HIDDEN, 2 * HIDDEN),
        }
        self.tensors: dict[str, Tensor] = {}
        for name, shape in shapes.items():
            values = torch.randn(shape, generator=generator)
            centre = 1 - self.plus
            scaled = values * 1.6 / shape[-1] ** 0.5 if len(shape) > 1 else centre + values / 5
            self.tensors[self._name(name)] = scaled
        self.eps = reference.hub.config.rms_norm_eps

    def count_on(self) -> None:
        """Makes the layer count on: half by the embedding, half by the hidden state."""
        _, step = circle()
        for name in ("enorm", "hnorm", "shared_head.norm"):
            self._own(name).fill_(1.0 - self.plus)
        halves = torch.eye(HIDDEN), step
        self._own("eh_proj").mul_(0.02).add_(torch.cat(halves[:: self._order], 1))

    @property
    def _order(self) -> int:
        return -1 if self.hidden_first else 1

    def _name(self, name: str) -> str:
        return f"model.layers.{LAYERS + self.number}.{name}.weight"

    def _own(self, name: str) -> Tensor:
        return self.tensors[self._name(name)]

    def _normed(self, x: Tensor, name: str) -> Tensor:
        return rms(x, self.plus + self._own(name), self.eps)

    def rows(self, tokens: list[int], hidden: Tensor) -> tuple[int, Tensor]:
        embedded = self._normed(self.reference.embedded(tokens), "enorm")
        halves = embedded, self._normed(hidden, "hnorm")
        joined = torch.cat(halves[:: self._order], -1) @ self._own("eh_proj").T
        layer = self.reference.hub.model.layers[LAYERS + self.number]
        found = self.reference.through(joined, [layer])[-1]
        normed = self._normed(found, "shared_head.norm")
        draft = int(self.reference.hub.lm_head(normed[-1]).argmax())
        return draft, normed if self.normed else found


class QwenLayer(MTPLayer):
    """A layer as Qwen3-Next's and Qwen3.5's checkpoints have it: under names of its own, norms
    around 0, and all but the layer itself in common with the others."""

    names: ClassVar = {
        "enorm": "pre_fc_norm_embedding",
        "hnorm": "pre_fc_norm_hidden",
        "shared_head.norm": "norm",
        "eh_proj": "fc",
    }
    plus: ClassVar = 1.0
    normed: ClassVar = True

    def _name(self, name: str) -> str:
        return f"mtp.{self.names[name]}.weight"


class MiMoLayer(MTPLayer):
    """A layer as MiMo's checkpoints have it."""

    names: ClassVar = {
        "enorm": "token_layernorm",
        "hnorm": "hidden_layernorm",
        "shared_head.norm": "final_layernorm",
        "eh_proj": "input_proj",
    }
    hidden_first: ClassVar = True
    normed: ClassVar = True

    def _name(self, name: str) -> str:
        return f"model.mtp_layers.{self.number}.{self.names[name]}.weight"


class MiMoV2Layer(MTPLayer):
    """A layer as MiMo-V2's checkpoints have it."""

    normed: ClassVar = True
    chained: ClassVar = False

    def _name(self, name: str) -> str:
        theirs = "final_layernorm" if name == "shared_head.norm" else name
        return f"model.mtp.layers.{self.number}.{theirs}.weight"


class StepLayer(MTPLayer):
    """A layer as Step 3.5's checkpoints have it, which reads the residual in front of the model's
    last norm."""

    plus: ClassVar = 1.0
    normed_input: ClassVar = False

    def _name(self, name: str) -> str:
        return super()._name(name.replace("shared_head", "transformer.shared_head"))


class MTP:
    """A head of one layer or several."""

    def __init__(self, reference: Reference, kind: type[MTPLayer], count: int) -> None:
        self.reference = reference
        self.chained, self._normed_input = kind.chained, kind.normed_input
        self._each = [kind(reference, number) for number in range(count)]
        self.tensors: dict[str, Tensor] = {}
        for each in self._each:
            each.tensors = {n: self.tensors.get(n, own) for n, own in each.tensors.items()}
            self.tensors |= each.tensors

    def count_on(self) -> None:
        common = len(self._each[0].tensors) == len(self.tensors)
        for each in self._each[:1] if common else self._each:
            each.count_on()

    def taken(self, tokens: list[int]) -> Tensor:
        hidden = self.reference.hidden(tokens)[-1]
        return self.reference.hub.model.norm(hidden) if self._normed_input else hidden

    @property
    def layers(self) -> list[HeadRows]:
        return [each.rows for each in self._each]
