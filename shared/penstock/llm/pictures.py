"""Pictures as the library's callers have them: objects of Pillow, arrays."""

from __future__ import annotations

from typing import Any

from penstock.errors import InvalidRequest

WANTED = "a PIL.Image, an array of uint8, a path, a URL or a file's bytes is needed"


def picture_fields(given: Any, where: str) -> dict[str, Any]:
    """MediaSource's fields of one picture. Raises InvalidRequest for what is none."""
    if hasattr(given, "convert") and hasattr(given, "tobytes"):  # Pillow's
        rgb = given.convert("RGB")
        return {"rgb": (rgb.tobytes(), rgb.width, rgb.height)}
    if hasattr(given, "__array_interface__"):
        return {"rgb": _rows(given, where)}
    raise InvalidRequest(f"{where} is {type(given).__name__}; {WANTED}")


def _rows(given: Any, where: str) -> tuple[bytes, int, int]:
    """RGB bytes, width and height of uint8 [height, width, 3], [3, height, width], or [height,
    width] in grey."""
    import numpy as np  # Here: who gives an array has it.

    array = np.asarray(given)
    shape = array.shape
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise InvalidRequest(
            f"{where} is an array of {array.dtype} {list(shape)}; uint8 [height, width, 3] is "
            "needed"
        )
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    elif shape[2] != 3 and shape[0] == 3:
        array = array.transpose(1, 2, 0)
    if array.shape[2] != 3 or not array.size:
        raise InvalidRequest(
            f"{where} is an array of shape {list(shape)}; [height, width, 3] is needed"
        )
    return array.tobytes(), array.shape[1], array.shape[0]
