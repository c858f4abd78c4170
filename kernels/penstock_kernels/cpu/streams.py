"""Several residuals, of which the layers compute one or which they mix, for the C++ library."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock_kernels.cpu.structs import PkMixing, PkStreams

UNIT = 32
"""CPUStreams lie side by side in a row, apart by their width rounded up to a multiple of this."""


@dataclass(frozen=True, kw_only=True)
class CPUStreams:
    """What a phase does with them. Coefficients that it doesn't read are None."""

    count: int
    active: int
    """Which one the layers compute."""
    width: int
    """Numbers of each."""
    router: np.ndarray | None = None
    """[count, width] float32; so are the others below."""
    prediction: np.ndarray | None = None
    """[count * count, count]."""
    correction: np.ndarray | None = None
    """[count, count]."""
    output_scale: np.ndarray | None = None
    """[stride]: factors of the active stream, filled up with zeros."""

    @property
    def stride(self) -> int:
        """Numbers from one stream to the next."""
        return -(-self.width // UNIT) * UNIT

    @property
    def whole(self) -> int:
        """Numbers of all streams."""
        return self.count * self.stride

    def struct(self) -> PkStreams:
        """Raises ValueError for coefficients of another shape."""
        square = self.count * self.count
        return PkStreams(
            count=self.count,
            active=self.active,
            stride=self.stride,
            router=_checked(self.router, self.count * self.width),
            prediction=_checked(self.prediction, square * self.count),
            correction=_checked(self.correction, square),
            output_scale=_checked(self.output_scale, self.stride),
        )


@dataclass(frozen=True, kw_only=True)
class CPUMixing:
    """How one half of a layer reads several residuals and takes up what it gives; or with `rounds`
    0, how they are read after the last layer."""

    count: int
    width: int
    """Numbers of each."""
    rounds: int
    """How often columns of the matrix that mixes them are normalised."""
    eps: float
    norm_eps: float
    product: np.ndarray
    """[logits, count * width] float32; so are the others below."""
    base: np.ndarray
    """[logits]."""
    scales: np.ndarray
    """[3], or [1] with `rounds` 0: a factor of each part of the logits."""

    @property
    def logits(self) -> int:
        return self.count * (2 + self.count) if self.rounds else self.count

    @property
    def whole(self) -> int:
        """Numbers of all residuals, and of the weights after them."""
        return self.count * (self.width + 1 + self.count)

    def struct(self) -> PkMixing:
        """Raises ValueError for arrays of another shape."""
        return PkMixing(
            count=self.count,
            rounds=self.rounds,
            eps=self.eps,
            norm_eps=self.norm_eps,
            product=_checked(self.product, self.logits * self.count * self.width),
            base=_checked(self.base, self.logits),
            scales=_checked(self.scales, 3 if self.rounds else 1),
        )


def _checked(values: np.ndarray | None, size: int) -> int | None:
    if values is None:
        return None
    if values.size != size or values.dtype != np.float32 or not values.flags.c_contiguous:
        raise ValueError(f"coefficients of streams are {values.dtype} {values.shape}, not {size}")
    return int(values.ctypes.data)
