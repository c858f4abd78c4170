"""Messages as a script gives them to `LLM.chat`: nobody has checked their types before."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.llm.prompts import _plain_message


@pytest.mark.parametrize("content", [5, 0.5, True, b"text", {"text": "x"}])
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_content_of_another_type_is_named(role: str, content: Any) -> None:
    kind = type(content).__name__
    with pytest.raises(InvalidRequest, match=rf"messages\[1\]\.content is a {kind}; allowed: text"):
        _plain_message({"role": role, "content": content}, "messages[1]", [])
