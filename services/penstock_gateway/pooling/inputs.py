"""The `input` of a body: one text or many, as texts or as token ids."""

from __future__ import annotations

from typing import cast

from penstock.errors import InvalidRequest
from penstock_gateway.pooling.fields import MAX_INPUTS

Given = str | list[int]
InputField = str | list[str | int | list[int]] | None


def inputs_of(value: InputField) -> list[Given]:
    """The inputs in order, none empty. Raises InvalidRequest."""
    given = _as_list(value)
    check_count("input", len(given))
    for position, each in enumerate(given):
        if not each:
            which = f"input[{position}]" if len(given) > 1 else "input"
            raise InvalidRequest(f"{which} is empty", param="input")
    return given


def texts_of(name: str, value: str | list[str]) -> list[str]:
    """One text or many, none empty. Raises InvalidRequest."""
    texts = [value] if isinstance(value, str) else value
    check_count(name, len(texts))
    for position, text in enumerate(texts):
        if not text:
            raise InvalidRequest(f"{name}[{position}] is empty", param=name)
    return texts


def check_count(name: str, count: int) -> None:
    """Raises InvalidRequest for none, or too many."""
    if not 1 <= count <= MAX_INPUTS:
        raise InvalidRequest(
            f"{name} has {count} entries; 1 to {MAX_INPUTS} are allowed", param=name
        )


def _as_list(value: InputField) -> list[Given]:
    if value is None:
        raise InvalidRequest("input is missing", param="input", code="missing_required_parameter")
    if isinstance(value, str):
        return [value]
    kinds = {type(element) for element in value}
    if len(kinds) > 1:
        raise InvalidRequest(
            "input mixes types; it must be a string, a list of strings, a list of token ids, or a "
            "list of lists of token ids",
            param="input",
            code="invalid_type",
        )
    if kinds == {int}:
        return [cast("list[int]", value)]
    return cast("list[Given]", value)
