"""What a budget of thoughts is for a model: its marks as token ids, and what is spent already."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken

from penstock.client.thinking import thinking_budget
from penstock.errors import InvalidRequest
from penstock.parsing.format import ChannelFormat, ThoughtFormat
from penstock.parsing.formats.channels import HARMONY, KIMI_K3_THOUGHTS
from penstock.parsing.formats.think import DEEPSEEK_R1, GEMMA4_THOUGHTS, GRANITE_THOUGHTS, THINK
from penstock.protocol.common import ThinkingBudget
from penstock.request.sampling_params import SamplingParams
from penstock.text.tokenizer import Tokenizer
from testing.tiny_models import byte_level_tokenizer

MARKS = (
    *("<think>", "</think>", "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>"),
    *("<|return|>", "<|channel>", "<channel|>", "<|open|>", "<|close|>", "<|sep|>"),
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = type(byte_level_tokenizer()).from_str(byte_level_tokenizer().to_str())
    made.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    return Tokenizer(made.to_str().encode(), add_bos=False, bos_token_id=None)


def budget(
    form: ThoughtFormat | ChannelFormat | None, prompt: str, tokenizer: Tokenizer
) -> ThinkingBudget:
    return thinking_budget(9, form, tokenizer, tokenizer.encode(prompt, add_special=False))


@pytest.mark.parametrize(
    ("form", "prompt", "spent"),
    [
        (THINK, "Hi", None),
        (THINK, "Hi<think>", ""),
        (THINK, "Hi<think>\n", "\n"),
        (THINK, "Hi<think>\nWell, I", "\nWell, I"),
        (THINK, "Hi<think>\n\n</think>\n\n", None),
        (THINK, "<think>a</think>b<|im_end|>Hi<think>c", "c"),
        (THINK, "a</think>b<think>", ""),
        (DEEPSEEK_R1, "Hi", ""),
        (DEEPSEEK_R1, "Hi<think>\n", "\n"),
        (DEEPSEEK_R1, "Hi<think>\n</think>\n\n", None),
        (DEEPSEEK_R1, "<think>a</think>b. Hi", ""),
        (GEMMA4_THOUGHTS, "Hi", None),
        (GEMMA4_THOUGHTS, "Hi<|channel>thought\nNo", "\nNo"),
        (GEMMA4_THOUGHTS, "Hi<|channel>thought\n<channel|>", None),
        (HARMONY, "<|start|>user<|message|>Hi<|end|><|start|>assistant", None),
        (HARMONY, "<|start|>assistant<|channel|>analysis<|message|>Now", "Now"),
        (HARMONY, "<|start|>assistant<|channel|>analysis<|message|>Now<|end|>", None),
        (KIMI_K3_THOUGHTS, "Hi<|open|>think<|sep|>No", "No"),
    ],
)
def test_tokens_of_thoughts_that_the_prompt_ends_in_are_spent(
    form: ThoughtFormat | ChannelFormat, prompt: str, spent: str | None, tokenizer: Tokenizer
) -> None:
    expected = None if spent is None else len(tokenizer.encode(spent, add_special=False))
    assert budget(form, prompt, tokenizer).spent == expected


@pytest.mark.parametrize(
    ("form", "begin", "ends", "closing"),
    [
        (THINK, "<think>", ["</think>"], "</think>"),
        (GEMMA4_THOUGHTS, "<|channel>thought", ["<channel|>"], "<channel|>"),
        (
            HARMONY,
            "<|channel|>analysis<|message|>",
            ["<|end|>", "<|call|>", "<|return|>"],
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
    ],
)
def test_marks_are_the_formats(
    form: ThoughtFormat | ChannelFormat,
    begin: str,
    ends: list[str],
    closing: str,
    tokenizer: Tokenizer,
) -> None:
    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special=False))

    found = budget(form, "Hi", tokenizer)
    assert found == ThinkingBudget(9, ids(begin), tuple(map(ids, ends)), ids(closing), None)


def test_a_mark_is_sought_at_whole_ids(tokenizer: Tokenizer) -> None:
    """Ids are compared as bytes: those of two neighbours hold others' between them."""
    (think,) = tokenizer.encode("<think>", add_special=False)
    found = thinking_budget(9, THINK, tokenizer, [think << 8, 0, 5])
    assert found.spent is None


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (None, "it isn't known how this model marks its thoughts"),
        (GRANITE_THOUGHTS, "'Here is my thought process:', which is no token"),
    ],
)
def test_thoughts_without_marks_of_their_own_are_refused(
    form: ThoughtFormat | None, why: str, tokenizer: Tokenizer
) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        budget(form, "Hi", tokenizer)
    assert caught.value.param == "thinking_token_budget"


@pytest.mark.parametrize("wrong", [-2, 1.5, True, 2**31])
def test_a_budget_is_a_number_of_tokens(wrong: int) -> None:
    assert SamplingParams(thinking_token_budget=-1).thinking_token_budget == -1
    with pytest.raises(InvalidRequest, match="thinking_token_budget must be a whole number"):
        SamplingParams(thinking_token_budget=wrong)
