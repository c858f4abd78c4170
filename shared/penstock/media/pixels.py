"""A prepared picture as numbers for a tower.

What travels and is kept are bytes, a quarter to a tenth of the numbers' size; a worker calls
`inputs`.  It gives what the family's image processor gives in transformers, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from penstock.media_facts import AnyresImages, ImagePreparation, PatchImages, Pixels

PIXELS = "pixels"
"""Of a prepared picture: uint8 [tiles, height, width, 3]."""
SIZE = "size"
"""Of an AnyresImages: int32 [2], height and width of the picture itself."""


def inputs(image: ImagePreparation, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What transformers' image processor gives for the picture, for its model.

    pixel_values: float32 [tiles, 3, height, width]; for a PatchImages [patches, 3 * frames * patch
    * patch], with grid_thw int32 [3], (1, height, width) in patches; for an AnyresImages with
    image_size int32 [2], (height, width) of the picture itself.
    arrays: of the prepared item, see `penstock.media.prepared`.  Raises ValueError for what no
    preparation yields.
    """
    pixels = arrays.get(PIXELS)
    if pixels is None or pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
        raise ValueError("a prepared picture has pixels of uint8 [tiles, height, width, 3]")
    if not pixels.size:
        raise ValueError("a prepared picture has pixels")
    values = np.stack([_numbers(tile, image.pixels) for tile in pixels])
    if isinstance(image, AnyresImages):
        size = arrays.get(SIZE)
        if size is None or size.dtype != np.int32 or size.shape != (2,):
            raise ValueError("a prepared picture in tiles has a size of two int32")
        return {"pixel_values": values, "image_size": size}
    if not isinstance(image, PatchImages):
        return {"pixel_values": values}
    side = image.patch * image.merge
    if len(values) != 1 or values.shape[2] % side or values.shape[3] % side:
        raise ValueError(f"a prepared picture's sides must be multiples of {side}")
    height, width = values.shape[2] // image.patch, values.shape[3] // image.patch
    grid = np.array([1, height, width], np.int32)
    return {"pixel_values": _patches(image, values[0]), "grid_thw": grid}


def _numbers(tile: np.ndarray, pixels: Pixels) -> np.ndarray:
    """float32 [3, height, width] of uint8 [height, width, 3]."""
    scale = 1.0 if pixels.rescale is None else pixels.rescale
    values: np.ndarray = (tile.astype(np.float64) * scale).astype(np.float32)
    if pixels.mean is not None and pixels.std is not None:
        values = (values - np.array(pixels.mean, np.float32)) / np.array(pixels.std, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1))


def _patches(image: PatchImages, values: np.ndarray) -> np.ndarray:
    """[patches, channels * frames * patch * patch] of [channels, height, width]: the patches that
    are merged stand next to each other."""
    channels, height, width = values.shape
    side, merge = image.patch, image.merge
    blocks = values.reshape(
        channels,
        height // (side * merge),
        merge,
        side,
        width // (side * merge),
        merge,
        side,
    )
    blocks = blocks.transpose(1, 4, 2, 5, 0, 3, 6)  # [rows, columns, merge, merge, channels, ...]
    flat = blocks.reshape(-1, channels, 1, side, side)
    return flat.repeat(image.frames, axis=2).reshape(len(flat), -1)
