"""Encoders whose makers' code isn't in transformers, written plainly from their papers, with the
names that their checkpoints have."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def _attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """[tokens, heads, head_dim] each. bias: [heads, tokens, tokens]."""
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1])
    weights = (scores if bias is None else scores + bias).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value).flatten(1)


def _random(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.2)
        if parameter.ndim == 1:
            parameter.data += 0.5


class JinaBertLayer(nn.Module):
    def __init__(self, size: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        names = ("query", "key", "value")
        self.attention = nn.ModuleDict(
            {
                "self": nn.ModuleDict({name: nn.Linear(size, size) for name in names}),
                "output": nn.ModuleDict(
                    {"dense": nn.Linear(size, size), "LayerNorm": nn.LayerNorm(size)}
                ),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gated_layers": nn.Linear(size, 2 * inner, bias=False),
                "wo": nn.Linear(inner, size),
                "layernorm": nn.LayerNorm(size),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = [each(x).unflatten(1, (self.heads, -1)) for each in self.attention["self"].values()]
        place = torch.arange(len(x))
        far = (place[:, None] - place[None, :]).abs()
        slopes = torch.tensor([2.0 ** (-8 * (head + 1) / self.heads) for head in range(self.heads)])
        mixed = _attend(*parts, -slopes[:, None, None] * far)
        output = self.attention["output"]
        x = output["LayerNorm"](output["dense"](mixed) + x)
        gate, up = self.mlp["gated_layers"](x).chunk(2, -1)
        return self.mlp["layernorm"](self.mlp["wo"](functional.gelu(gate) * up) + x)


class JinaBert(nn.Module):
    """Günther et al., "Jina Embeddings 2", 2023. heads: a power of two."""

    def __init__(self, vocab: int, size: int, inner: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(vocab, size),
                "token_type_embeddings": nn.Embedding(2, size),
                "LayerNorm": nn.LayerNorm(size),
            }
        )
        found = nn.ModuleList(JinaBertLayer(size, inner, heads) for _ in range(layers))
        self.encoder = nn.ModuleDict({"layer": found})
        _random(self)

    def forward(self, tokens: Tensor) -> Tensor:
        at = self.embeddings
        x = at["word_embeddings"](tokens) + at["token_type_embeddings"].weight[0]
        x = at["LayerNorm"](x)
        for layer in self.encoder["layer"]:
            x = layer(x)
        return x


class NeoBertLayer(nn.Module):
    def __init__(self, size: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(size, 3 * size, bias=False)
        self.wo = nn.Linear(size, size, bias=False)
        self.ffn = nn.ModuleDict(
            {
                "w12": nn.Linear(size, 2 * inner, bias=False),
                "w3": nn.Linear(inner, size, bias=False),
            }
        )
        self.attention_norm, self.ffn_norm = nn.RMSNorm(size, 1e-6), nn.RMSNorm(size, 1e-6)

    def _turned(self, x: Tensor) -> Tensor:
        dim = x.shape[-1]
        angles = torch.outer(
            torch.arange(len(x)).float(), 10_000.0 ** -(torch.arange(0, dim, 2) / dim)
        )
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.view_as_real(turned).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.attention_norm(x)).unflatten(1, (self.heads, -1)).chunk(3, -1)
        query, key, value = self._turned(parts[0]), self._turned(parts[1]), parts[2]
        x = x + self.wo(_attend(query, key, value))
        gate, up = self.ffn["w12"](self.ffn_norm(x)).chunk(2, -1)
        return x + self.ffn["w3"](functional.silu(gate) * up)


class NeoBert(nn.Module):
    """Le Breton et al., "NeoBERT", 2025, with a head for `labels`."""

    def __init__(
        self, vocab: int, size: int, inner: int, layers: int, heads: int, labels: int
    ) -> None:
        super().__init__()
        self.encoder = nn.Embedding(vocab, size)
        self.transformer_encoder = nn.ModuleList(
            NeoBertLayer(size, inner, heads) for _ in range(layers)
        )
        self.layer_norm = nn.RMSNorm(size, 1e-6)
        self.dense, self.classifier = nn.Linear(size, size), nn.Linear(size, labels)
        _random(self)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.encoder(tokens)
        for layer in self.transformer_encoder:
            x = layer(x)
        return self.layer_norm(x)

    def logits(self, tokens: Tensor) -> Tensor:
        return self.classifier(torch.tanh(self.dense(self(tokens)[0])))


class NomicExpertsLayer(nn.Module):
    def __init__(self, size: int, inner: int, heads: int, experts: int) -> None:
        super().__init__()
        self.heads, self.inner = heads, inner
        self.attn = nn.ModuleDict(
            {"Wqkv": nn.Linear(size, 3 * size), "out_proj": nn.Linear(size, size)}
        )
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.mlp = nn.Module()
        if not experts:
            self.mlp.fc1, self.mlp.fc2 = nn.Linear(size, inner), nn.Linear(inner, size)
            return
        self.mlp.router = nn.ModuleDict({"layer": nn.Linear(size, experts, bias=False)})
        self.mlp.experts = nn.Module()
        self.mlp.experts.mlp = nn.Module()
        for name in ("w1", "w2"):
            stack = nn.Parameter(torch.empty(experts * inner, size))
            setattr(self.mlp.experts.mlp, name, stack)

    def _turned(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        steps = 10_000.0 ** -(torch.arange(half) / half)
        angles = torch.outer(torch.arange(len(x)).float(), steps)[:, None]
        one, other = x[..., :half], x[..., half:]
        cosines, sines = angles.cos(), angles.sin()
        return torch.cat((one * cosines - other * sines, other * cosines + one * sines), -1)

    def _of_experts(self, x: Tensor) -> Tensor:
        """Each token by itself, with its two experts."""
        first, second = (
            getattr(self.mlp.experts.mlp, name).unflatten(0, (-1, self.inner))
            for name in ("w1", "w2")
        )
        shares, chosen = self.mlp.router["layer"](x).softmax(-1).topk(2)
        rows = []
        for token, own, numbers in zip(x, shares, chosen, strict=True):
            made = [functional.gelu(first[n] @ token) @ second[n] for n in numbers.tolist()]
            rows.append(own[0] * made[0] + own[1] * made[1])
        return torch.stack(rows)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attn["Wqkv"](x).chunk(3, -1)
        query, key, value = (part.unflatten(1, (self.heads, -1)) for part in parts)
        mixed = _attend(self._turned(query), self._turned(key), value)
        x = self.norm1(self.attn["out_proj"](mixed) + x)
        if hasattr(self.mlp, "experts"):
            return self.norm2(self._of_experts(x) + x)
        return self.norm2(self.mlp.fc2(functional.gelu(self.mlp.fc1(x))) + x)


class NomicExperts(nn.Module):
    """Nussbaum and Duderstadt, "Training sparse mixture of experts text embedding models", 2025:
    every second layer has experts, of which a token has two."""

    def __init__(
        self, vocab: int, size: int, inner: int, layers: int, heads: int, experts: int
    ) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(vocab, size),
                "token_type_embeddings": nn.Embedding(1, size),
            }
        )
        self.emb_ln = nn.LayerNorm(size)
        found = nn.ModuleList(
            NomicExpertsLayer(size, inner, heads, experts if number % 2 else 0)
            for number in range(layers)
        )
        self.encoder = nn.ModuleDict({"layers": found})
        _random(self)

    def forward(self, tokens: Tensor) -> Tensor:
        at = self.embeddings
        x = self.emb_ln(at["word_embeddings"](tokens) + at["token_type_embeddings"].weight[0])
        for layer in self.encoder["layers"]:
            x = layer(x)
        return x
