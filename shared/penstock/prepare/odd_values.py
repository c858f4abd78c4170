"""Values of settings that break a reader's arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError, UnsupportedModel


@contextmanager
def odd_values_refused(where: str) -> Iterator[None]:
    """Raises UnsupportedModel for what a reader of `where` couldn't compute: a power beyond a
    float, a division by zero, a nesting beyond Python's stack."""
    try:
        yield
    except PenstockError:
        raise
    except (ArithmeticError, RecursionError, ValueError) as error:
        raise UnsupportedModel(
            f"{where}: nothing can be computed from the value of a setting ({error})"
        ) from error
