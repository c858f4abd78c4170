"""Charts by matplotlib, without a display."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def chart(
    path: Path, columns: int = 1, rows: int = 1, *, size: tuple[float, float], **options: Any
) -> Iterator[Any]:
    """Gives the axes to draw on, as `pyplot.subplots` has them, and writes the file at the end.

    size: of the whole, in inches.  Raises ImportError without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", **options)
    try:
        yield axes
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)


def of_first(draw: Callable[[Path, Any], None]) -> Callable[[Path, Mapping[str, Any]], None]:
    """Draws the first run of a page of several."""
    return lambda path, runs: draw(path, next(iter(runs.values())))
