"""MobileNet V5, slow and obvious, by timm's names: transformers takes Gemma 3n's tower from there,
and timm asks for torchvision. Written from the architecture's definition, and compared by hand with
timm 1.0.31's `mobilenetv5_300m_enc`: equal to 3e-6 of the largest number, with the release's widths
and a 16th of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

STEM, FEATURES = 64, 2048
STAGES = (
    ["edge 3 2 4 128", *["edge 3 1 4 128"] * 2],
    ["invert 3 5 2 6 256", *["invert 5 0 1 4 256", "invert 3 0 1 4 256"] * 2],
    [
        "invert 5 5 2 6 640",
        *["invert 5 0 1 4 640"] * 7,
        "invert 0 0 1 1 640",
        *["attend 12 64 2", "invert 0 0 1 2 640"] * 14,
    ],
    ["invert 5 5 2 6 1280", *["attend 16 96 1", "invert 0 0 1 2 1280"] * 19],
)
"""Blocks: places that a convolution reads, in an inverted block of the first one and of the second;
the step; the widening; the channels. Heads, their size and the step of what they see."""


class Norm(nn.Module):
    def __init__(self, channels: int, *, gelu: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.gelu = gelu

    def forward(self, x: Tensor) -> Tensor:
        made = x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt() * self.weight[:, None, None]
        return functional.gelu(made, approximate="tanh") if self.gelu else made


class Convolution(nn.Conv2d):
    """Beyond the edges are as many zeros as the steps need, an odd one at the right and below."""

    def forward(self, x: Tensor) -> Tensor:
        around: list[int] = []
        for size in (x.shape[3], x.shape[2]):
            missing = (-(-size // self.stride[0]) - 1) * self.stride[0] + self.kernel_size[0] - size
            around += [max(missing, 0) // 2, max(missing, 0) - max(missing, 0) // 2]
        return super().forward(functional.pad(x, around))


class ConvNorm(nn.Module):
    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, step: int = 1, **more: bool
    ) -> None:
        super().__init__()
        groups = inputs if more.get("apart") else 1
        bias = more.get("bias", False)
        self.conv = Convolution(inputs, outputs, kernel, step, groups=groups, bias=bias)
        self.bn = Norm(outputs, gelu=more.get("gelu", False))

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))


class Scale(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(channels).normal_(0.5, 0.3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma[:, None, None]


class Edge(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, step: int, widening: int) -> None:
        super().__init__()
        inner = widening * inputs
        self.conv_exp = Convolution(inputs, inner, kernel, step, bias=False)
        self.bn1 = Norm(inner, gelu=True)
        self.conv_pwl = Convolution(inner, outputs, 1, bias=False)
        self.bn2 = Norm(outputs)
        self.added = inputs == outputs and step == 1

    def forward(self, x: Tensor) -> Tensor:
        made = self.bn2(self.conv_pwl(self.bn1(self.conv_exp(x))))
        return made + x if self.added else made


class Inverted(nn.Module):
    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernels: tuple[int, int],
        step: int,
        widening: int,
        *,
        scaled: bool = True,
    ) -> None:
        super().__init__()
        inner, (first, second) = widening * inputs, kernels
        keep = nn.Identity()
        self.dw_start = ConvNorm(inputs, inputs, first, apart=True) if first else keep
        self.pw_exp = ConvNorm(inputs, inner, 1, gelu=True)
        self.dw_mid = (
            ConvNorm(inner, inner, second, step=step, apart=True, gelu=True) if second else keep
        )
        self.pw_proj = ConvNorm(inner, outputs, 1)
        self.layer_scale = Scale(outputs) if scaled else keep
        self.added = inputs == outputs and step == 1 and scaled

    def forward(self, x: Tensor) -> Tensor:
        made = self.pw_proj(self.dw_mid(self.pw_exp(self.dw_start(x))))
        return self.layer_scale(made) + x if self.added else self.layer_scale(made)


class Attention(nn.Module):
    def __init__(self, channels: int, heads: int, size: int, step: int) -> None:
        super().__init__()
        self.heads = heads
        parts: dict[str, nn.ModuleDict] = {}
        for name in ("key", "value"):
            nearer = Convolution(channels, channels, 3, step, groups=channels, bias=False)
            also = {"down_conv": nearer, "norm": Norm(channels)} if step > 1 else {}
            parts[name] = nn.ModuleDict(
                {**also, "proj": Convolution(channels, size, 1, bias=False)}
            )
        self.key, self.value = parts["key"], parts["value"]
        self.query = nn.ModuleDict({"proj": Convolution(channels, heads * size, 1, bias=False)})
        self.output = nn.ModuleDict({"proj": Convolution(heads * size, channels, 1, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for part in (self.key, self.value):
            made = x
            for module in part.values():
                made = module(made)
            seen.append(made.flatten(2))
        key, value = seen
        found = []
        for query in self.query["proj"](x).flatten(2).chunk(self.heads, 1):
            scores = query.transpose(1, 2) @ key / query.shape[1] ** 0.5
            found.append(value @ scores.softmax(2).transpose(1, 2))
        return self.output["proj"](torch.cat(found, 1).unflatten(2, x.shape[2:]))


class Attending(nn.Module):
    def __init__(self, channels: int, heads: int, size: int, step: int) -> None:
        super().__init__()
        self.norm = Norm(channels)
        self.attn = Attention(channels, heads, size, step)
        self.layer_scale = Scale(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer_scale(self.attn(self.norm(x))) + x


class Together(nn.Module):
    def __init__(self, inputs: int, side: int) -> None:
        super().__init__()
        self.ffn = Inverted(inputs, FEATURES, (0, 0), 1, 2, scaled=False)
        self.norm = Norm(FEATURES)
        self.side = side

    def forward(self, larger: Tensor, smaller: Tensor) -> Tensor:
        same = functional.interpolate(smaller, size=larger.shape[2:], mode="nearest")
        made = self.ffn(torch.cat((larger, same), 1))
        return self.norm(functional.avg_pool2d(made, made.shape[2] // self.side))


class MobileNet(nn.Module):
    """factor: of all widths but the first.  side: rows and columns of what comes out."""

    def __init__(self, factor: float, side: int) -> None:
        super().__init__()
        self.conv_stem = ConvNorm(3, STEM, 3, step=2, bias=True, gelu=True)
        channels, ends, stages = STEM, [], []
        for stage in STAGES:
            blocks: list[nn.Module] = []
            for line in stage:
                kind, *numbers = line.split()
                given = [int(number) for number in numbers]
                if kind == "attend":
                    blocks.append(Attending(channels, *given))
                    continue
                wide = int(given[-1] * factor)
                if kind == "edge":
                    blocks.append(Edge(channels, wide, *given[:3]))
                else:
                    first, second, step, widening = given[:4]
                    blocks.append(Inverted(channels, wide, (first, second), step, widening))
                channels = wide
            stages.append(nn.Sequential(*blocks))
            ends.append(channels)
        self.blocks = nn.ModuleList(stages)
        self.msfa = Together(sum(ends[-2:]), side)

    def forward(self, x: Tensor) -> Tensor:
        found, x = [], self.conv_stem(x)
        for stage in self.blocks:
            x = stage(x)
            found.append(x)
        return self.msfa(*found[-2:])


class Wrapper(nn.Module):
    """What transformers puts around a tower of timm's. config: Gemma3nVisionConfig."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        args = config.model_args
        self.timm_model = MobileNet(args["channel_multiplier"], args["msfa_output_resolution"])

    def forward(self, pixel_values: Tensor, **_named: Any) -> Any:
        return SimpleNamespace(last_hidden_state=self.timm_model(pixel_values))
