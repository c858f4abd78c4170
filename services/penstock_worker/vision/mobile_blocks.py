"""What a tower of convolutions is made of: products, norms and blocks of planes, in bands.

Planes are [tiles, rows, columns, channels]. They are computed in bands of rows, whose height
follows from the plane's form alone, and so does each bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.mobilenet_spec import EdgeBlock, InvertedBlock, MobileBlock, QueryBlock
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights

BAND = 512
"""Most places of a band; results depend on it. A product of 512 rows with 640 by 2,560 numbers in
bfloat16 runs at 1.5 times the speed of 128, on one thread with AMX; a band still fits the cache."""
SLOPE, CUBE = 2 * math.sqrt(2 / math.pi), 0.044715

OfBand = Callable[[Tensor, Tensor], Tensor]
"""Makes a band of outputs from its receptive field, [rows, columns, channels] with zeros beyond the
edges, and from the same band of another plane, [rows, columns, channels]. Returns [rows * columns,
outputs]."""


class Bands:
    """Computes planes band by band."""

    def __init__(self, threads: RowThreads) -> None:
        self.threads = threads

    def of(
        self,
        plane: Tensor,
        of_band: OfBand,
        kernel: int,
        step: int,
        each: int,
        beside: Tensor | None = None,
    ) -> Pieces[Tensor]:
        """kernel: places in a row that an output sees.  step: from one output's to the next's.
        each: multiplications of a place.  beside: a plane of the outputs' form, whose band
        `of_band` gets; None: `plane`."""
        tiles, rows, columns = plane.shape[0], *(-(-side // step) for side in plane.shape[1:3])
        filled, beside = _filled(plane, kernel, step), plane if beside is None else beside
        height = _height(rows, columns) if not plane.is_cuda else rows
        bands = rows // height

        def one(number: Tensor) -> Tensor:
            tile, band = divmod(int(number), bands)
            top = band * height
            last = (top + height - 1) * step + kernel
            seen = filled[tile, top * step : last]
            return of_band(seen, beside[tile, top : top + height])[None]

        numbers, work = torch.arange(tiles * bands), each * height * columns
        made = yield from self.threads.each(one, numbers, each=work)
        return made.view(tiles, rows, columns, -1)


def _height(rows: int, columns: int) -> int:
    """Rows of a band: the most that divide a plane's and have no more than BAND places."""
    return max(
        each
        for each in range(1, rows + 1)
        if not rows % each and (each == 1 or each * columns <= BAND)
    )


def _filled(plane: Tensor, kernel: int, step: int) -> Tensor:
    """Returns the plane with zeros around it, as many as whole steps need; an odd one is at the
    end."""
    if kernel == 1 and step == 1:
        return plane
    around: list[int] = []
    for side in (plane.shape[2], plane.shape[1]):
        missing = max((-(-side // step) - 1) * step + kernel - side, 0)
        around += [missing // 2, missing - missing // 2]
    return functional.pad(plane, (0, 0, *around))


class PlaneNorm:
    """x / sqrt(mean(x^2) + eps) * weight of each row, then gelu's approximation if wanted; computed
    in float32 and rounded once."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight, self._eps = weight, eps

    def __call__(self, x: Tensor, *, gelu: bool = False) -> Tensor:
        wide = x.to(torch.float32, copy=True)
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        wide.mul_(torch.rsqrt(length * length / x.shape[-1] + self._eps)).mul_(self._weight)
        if gelu:
            # exp has the same bits at any place of a tensor, which torch's own gelu hasn't.
            inner = (wide * wide).mul_(-SLOPE * CUBE).sub_(SLOPE).mul_(wide)
            wide.div_(inner.exp_().add_(1.0))
        return wide.to(x.dtype)


class Around:
    """A product of all that lies around a place."""

    def __init__(self, weight: Tensor, bias: Tensor | None, step: int) -> None:
        """weight: [outputs, inputs, kernel, kernel]."""
        self._product = TowerProduct(weight.permute(0, 2, 3, 1).flatten(1).contiguous(), bias)
        self._kernel, self._step = weight.shape[2], step

    @property
    def size(self) -> int:
        """Multiplications for each place."""
        return self._product.size

    def given(self, x: Tensor) -> Tensor:
        """Returns `x` where the weight is, and in its dtype."""
        return self._product.given(x)

    def __call__(self, seen: Tensor) -> Tensor:
        """[rows, columns, inputs] with what lies beyond the edges to [places, outputs]."""
        rows, columns = (side - self._kernel + 1 for side in seen.shape[:2])
        around = [
            seen[top : top + rows : self._step, left : left + columns : self._step]
            for top in range(self._kernel)
            for left in range(self._kernel)
        ]
        return self._product(torch.cat(around, 2).flatten(0, 1))


class _Depthwise:
    """A convolution of each channel by itself."""

    def __init__(self, weight: Tensor, step: int) -> None:
        """weight: [channels, 1, kernel, kernel]."""
        self._weight, self._step = weight, step
        self.size = weight.numel()

    def __call__(self, seen: Tensor) -> Tensor:
        """[rows, columns, channels] with what lies beyond the edges to [places, channels]."""
        planes = seen.permute(2, 0, 1)[None]
        made = functional.conv2d(planes, self._weight, stride=self._step, groups=len(self._weight))
        return made[0].permute(1, 2, 0).flatten(0, 1).contiguous()


class PlaneBlock(Protocol):
    step: int
    outputs: int

    def work(self, places: int) -> int:
        """Multiplications for a plane that has so many places before the block."""

    def pieces(self, plane: Tensor, bands: Bands) -> Pieces[Tensor]: ...


class _Edge:
    def __init__(self, spec: EdgeBlock, load: BlockLoader, at: str, inputs: int) -> None:
        inner = spec.expansion * inputs
        self._up = load.convolution(f"{at}.conv_exp", inputs, inner, spec.kernel, spec.step)
        self._up_norm = load.norm(f"{at}.bn1", inner)
        self._down = load.product(f"{at}.conv_pwl", inner, spec.outputs)
        self._down_norm = load.norm(f"{at}.bn2", spec.outputs)
        self._kernel, self.step, self.outputs = spec.kernel, spec.step, spec.outputs
        self._added = spec.step == 1 and inputs == spec.outputs

    def work(self, places: int) -> int:
        return places // self.step**2 * (self._up.size + self._down.size)

    def pieces(self, plane: Tensor, bands: Bands) -> Pieces[Tensor]:
        size = self._up.size + self._down.size
        return (yield from bands.of(plane, self._of_band, self._kernel, self.step, size))

    def _of_band(self, seen: Tensor, beside: Tensor) -> Tensor:
        made = self._down_norm(self._down(self._up_norm(self._up(seen), gelu=True)))
        return made + beside.flatten(0, 1) if self._added else made


class _Inverted:
    def __init__(self, spec: InvertedBlock, load: BlockLoader, at: str, inputs: int) -> None:
        inner = spec.expansion * inputs
        self._start, self._middle = (
            load.depthwise(f"{at}.{name}.conv", channels, kernel, step) if kernel else None
            for name, channels, kernel, step in (
                ("dw_start", inputs, spec.start, 1),
                ("dw_mid", inner, spec.middle, spec.step),
            )
        )
        self._start_norm = load.norm(f"{at}.dw_start.bn", inputs) if spec.start else None
        self._middle_norm = load.norm(f"{at}.dw_mid.bn", inner) if spec.middle else None
        self._up = load.product(f"{at}.pw_exp.conv", inputs, inner)
        self._up_norm = load.norm(f"{at}.pw_exp.bn", inner)
        self._down = load.product(f"{at}.pw_proj.conv", inner, spec.outputs)
        self._down_norm = load.norm(f"{at}.pw_proj.bn", spec.outputs)
        self._scale = load.factor(f"{at}.layer_scale.gamma", spec.outputs)
        self._spec, self.step, self.outputs = spec, spec.step, spec.outputs
        self._added = spec.step == 1 and inputs == spec.outputs

    @property
    def _sizes(self) -> tuple[int, int]:
        """Multiplications of a place before the second convolution, and after it."""
        start, middle = (0 if each is None else each.size for each in (self._start, self._middle))
        return self._up.size + start, self._down.size + middle

    def work(self, places: int) -> int:
        before, behind = self._sizes
        return places * before + places // self.step**2 * behind

    def pieces(self, plane: Tensor, bands: Bands) -> Pieces[Tensor]:
        spec, (before, behind) = self._spec, self._sizes
        start = spec.start or 1
        if not spec.middle:
            return (yield from bands.of(plane, self._of_band, start, 1, before + behind))
        wide = yield from bands.of(plane, lambda seen, _: self._widened(seen), start, 1, before)
        beside = plane if self._added else None
        return (yield from bands.of(wide, self._narrowed, spec.middle, spec.step, behind, beside))

    def _of_band(self, seen: Tensor, beside: Tensor) -> Tensor:
        return self._shrunk(self._widened(seen), beside)

    def _widened(self, seen: Tensor) -> Tensor:
        rows = seen.flatten(0, 1) if self._start is None else self._start(seen)
        rows = rows if self._start_norm is None else self._start_norm(rows)
        return self._up_norm(self._up(rows), gelu=True)

    def _narrowed(self, seen: Tensor, beside: Tensor) -> Tensor:
        rows = seen.flatten(0, 1) if self._middle is None else self._middle(seen)
        rows = rows if self._middle_norm is None else self._middle_norm(rows, gelu=True)
        return self._shrunk(rows, beside)

    def _shrunk(self, rows: Tensor, beside: Tensor) -> Tensor:
        made = self._down_norm(self._down(rows)) * self._scale
        return made + beside.flatten(0, 1) if self._added else made


class _Query:
    step = 1

    def __init__(self, spec: QueryBlock, load: BlockLoader, at: str, inputs: int) -> None:
        own = f"{at}.attn"
        self._norm = load.norm(f"{at}.norm", inputs)
        self._query = load.product(f"{own}.query.proj", inputs, spec.heads * spec.head_dim)
        parts = [f"{own}.{part}" for part in ("key", "value")]
        self._seen = [load.product(f"{part}.proj", inputs, spec.head_dim) for part in parts]
        self._nearer: list[tuple[_Depthwise, PlaneNorm]] = []
        if spec.step > 1:
            self._nearer = [
                (
                    load.depthwise(f"{part}.down_conv", inputs, 3, spec.step),
                    load.norm(f"{part}.norm", inputs),
                )
                for part in parts
            ]
        self._mixed = load.product(f"{own}.output.proj", spec.heads * spec.head_dim, inputs)
        self._scale = load.factor(f"{at}.layer_scale.gamma", inputs)
        self._spec, self.outputs = spec, inputs

    def work(self, places: int) -> int:
        seen, width = places // self._spec.step**2, self._spec.heads * self._spec.head_dim
        products = places * (self._query.size + self._mixed.size) + seen * self._seen_size
        return products + 2 * places * seen * width

    @property
    def _seen_size(self) -> int:
        """Multiplications of a key and its value."""
        return sum(each.size for each in self._seen) + sum(each.size for each, _ in self._nearer)

    def pieces(self, plane: Tensor, bands: Bands) -> Pieces[Tensor]:
        kernel, step = (3 if self._nearer else 1), self._spec.step
        normed = yield from bands.of(
            plane, lambda seen, _: self._norm(seen.flatten(0, 1)), 1, 1, plane.shape[3]
        )
        queries = yield from bands.of(
            normed, lambda seen, _: self._query(seen.flatten(0, 1)), 1, 1, self._query.size
        )
        both = yield from bands.of(normed, self._keys, kernel, step, self._seen_size)
        tiles = zip(queries.flatten(1, 2), both.flatten(1, 2), strict=True)
        found: list[Tensor] = []
        for query, seen in tiles:
            found.append((yield from self._attended(query, seen, bands.threads)))
        mixed = torch.stack(found).view(queries.shape)
        return (yield from bands.of(mixed, self._scaled, 1, 1, self._mixed.size, plane))

    def _keys(self, seen: Tensor, _: Tensor) -> Tensor:
        """Keys and values, side by side."""
        if not self._nearer:
            return torch.cat([product(seen.flatten(0, 1)) for product in self._seen], 1)
        made = zip(self._seen, self._nearer, strict=True)
        return torch.cat([product(norm(nearer(seen))) for product, (nearer, norm) in made], 1)

    def _attended(self, query: Tensor, seen: Tensor, threads: RowThreads) -> Pieces[Tensor]:
        """query: [places, heads * size].  seen: [places, 2 * size].  Returns `query`'s form."""
        heads = query.unflatten(1, (self._spec.heads, -1)).transpose(0, 1)
        key, value = (each.contiguous()[None, None] for each in seen.chunk(2, 1))

        def one(head: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(head[None], key, value)[0]

        each = 2 * heads.shape[1] * seen.numel() // 2
        made = yield from threads.each(one, heads, each=each)
        return made.transpose(0, 1).flatten(1).contiguous()

    def _scaled(self, seen: Tensor, beside: Tensor) -> Tensor:
        return self._mixed(seen.flatten(0, 1)) * self._scale + beside.flatten(0, 1)


class BlockLoader:
    """Reads a tower's parts by the names of their modules."""

    def __init__(self, weights: Weights, eps: float, threads: RowThreads) -> None:
        self._weights, self._eps = weights, eps
        self.bands = Bands(threads)

    def block(self, spec: MobileBlock, at: str, inputs: int) -> PlaneBlock:
        match spec:
            case EdgeBlock():
                return _Edge(spec, self, at, inputs)
            case InvertedBlock():
                return _Inverted(spec, self, at, inputs)
            case QueryBlock():
                return _Query(spec, self, at, inputs)

    def product(self, name: str, inputs: int, outputs: int) -> TowerProduct:
        weight = self._weights.take(f"{name}.weight", (outputs, inputs, 1, 1))
        return TowerProduct(weight.flatten(1), None)

    def convolution(
        self,
        name: str,
        inputs: int,
        outputs: int,
        kernel: int,
        step: int = 2,
        *,
        bias: bool = False,
    ) -> Around:
        weight = self._weights.take(f"{name}.weight", (outputs, inputs, kernel, kernel))
        return Around(weight, self.factor(f"{name}.bias", outputs) if bias else None, step)

    def depthwise(self, name: str, channels: int, kernel: int, step: int) -> _Depthwise:
        shape = (channels, 1, kernel, kernel)
        return _Depthwise(self._weights.take(f"{name}.weight", shape), step)

    def norm(self, name: str, size: int) -> PlaneNorm:
        return PlaneNorm(self._weights.take(f"{name}.weight", (size,), torch.float32), self._eps)

    def factor(self, name: str, size: int) -> Tensor:
        """A vector, which mmproj files have as a plane of places."""
        wide = self._weights.has(name) and len(self._weights.shape(name)) == 4
        return self._weights.take(name, (1, size, 1, 1) if wide else (size,)).flatten()
