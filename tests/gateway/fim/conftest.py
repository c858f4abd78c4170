"""A model whose tokens are bytes and marks for filling in the middle."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

from penstock.client import ModelText
from tests.gateway.byte_tokenizer import END, ByteTokenizer
from tests.gateway.fake_engine import FakeEngineClient, welcome

PREFIX, SUFFIX, MIDDLE, REPOSITORY, FILE = range(257, 262)


def _added(*more: tuple[int, str]) -> dict[int, Any]:
    marks = (
        (END, "<|end|>"),
        (PREFIX, "<|fim_prefix|>"),
        (SUFFIX, "<|fim_suffix|>"),
        (MIDDLE, "<|fim_middle|>"),
    )
    return {i: SimpleNamespace(content=text, special=True) for i, text in (*marks, *more)}


class FIMTokenizer(ByteTokenizer):
    vocab_size = 262
    added_tokens: ClassVar[dict[int, Any]] = _added()


class RepositoryTokenizer(FIMTokenizer):
    """Has marks for other files, too."""

    added_tokens: ClassVar[dict[int, Any]] = _added(
        (REPOSITORY, "<|repo_name|>"), (FILE, "<|file_sep|>")
    )


def speaks(engine: FakeEngineClient, tokenizer: Any) -> FakeEngineClient:
    engine.text = ModelText(tokenizer, engine.text.template)
    limits = msgspec.structs.replace(engine.welcome.limits, vocab_size=tokenizer.vocab_size)
    engine.welcome = welcome(limits=limits)
    return engine


@pytest.fixture
def filling(engine: FakeEngineClient) -> FakeEngineClient:
    """An engine whose model can fill in the middle."""
    return speaks(engine, FIMTokenizer())


@pytest.fixture
def knowing(engine: FakeEngineClient) -> FakeEngineClient:
    """One whose model was taught whole repositories."""
    return speaks(engine, RepositoryTokenizer())
