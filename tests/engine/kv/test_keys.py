"""The names of KV blocks: equal for what is equal up to their ends, and for nothing else."""

from __future__ import annotations

import pytest

from penstock_engine.kv.keys import prefix_root, prompt_keys

SIZE = 4
PROMPT = list(range(100, 117))


def _keys(prompt: list[int], root: bytes = b"r" * 32) -> list[bytes]:
    return list(prompt_keys(root, prompt, SIZE))


@pytest.mark.parametrize("at", range(len(PROMPT) - 1))
def test_any_token_changes_its_block_and_those_after_it(at: int) -> None:
    changed = [token + (place == at) for place, token in enumerate(PROMPT)]
    before, after = _keys(PROMPT), _keys(changed)
    block = at // SIZE
    assert before[:block] == after[:block]
    assert not set(before[block:]) & set(after[block:])


def test_the_last_token_is_in_no_block() -> None:
    assert len(_keys(PROMPT)) == 4
    assert len(_keys(PROMPT[:-1])) == 3, "its last token is computed in any case"


def test_who_asks_is_part_of_each_name() -> None:
    roots = [prefix_root(tenant, salt) for tenant in ("", "a", "b") for salt in ("", "a", "b")]
    names = [name for root in roots for name in _keys(PROMPT, root)]
    assert len(set(names)) == len(names)
