"""Thoughts in `<think>` blocks, whose beginning is often in the prompt."""

from penstock.parsing.format import MarkPair, Recognised, ThoughtFormat

THINK = ThoughtFormat(
    names=(
        *("qwen3", "glm45", "kimi_k2", "minimax_m2", "deepseek_v3", "nemotron_v3", "olmo3"),
        *("ernie45", "holo2"),
    ),
    models="Qwen3, GLM, Kimi K2, DeepSeek, MiniMax, Nemotron, SmolLM3, OLMo 3 and others",
    recognised=Recognised(all_of=("</think>",)),
    block=MarkPair("<think>", "</think>"),
)
DEEPSEEK_R1 = ThoughtFormat(
    names=("deepseek_r1", "step3"),
    models="DeepSeek R1, whose answers begin inside of the block",
    block=MarkPair("<think>", "</think>"),
    open_at_first=True,
)
MISTRAL_THOUGHTS = ThoughtFormat(
    names=("mistral",),
    models="Magistral, Ministral 3",
    recognised=Recognised(all_of=("[THINK]", "[/THINK]")),
    block=MarkPair("[THINK]", "[/THINK]"),
    tokens=("[THINK]", "[/THINK]"),
)
GRANITE_THOUGHTS = ThoughtFormat(
    names=("granite",),
    models="Granite 3.2",
    recognised=Recognised(all_of=("Here is my thought process:", "Here is my response:")),
    block=MarkPair("Here is my thought process:", "Here is my response:"),
)
APRIEL_THOUGHTS = ThoughtFormat(
    names=("apriel",),
    models="Apriel 1.5 and 1.6",
    recognised=Recognised(all_of=("[BEGIN FINAL RESPONSE]",)),
    block=MarkPair("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ended_by=("<tool_calls>",),
    dropped=("[END FINAL RESPONSE]",),
)
KIMI_VL_THOUGHTS = ThoughtFormat(
    names=("kimi",),
    models="Kimi-VL Thinking, Kimi-Dev",
    recognised=Recognised(
        any_of=("◁think▷", "◁/think▷", "<|media_content|>"),
        none_of=("</think>", "<|tool_calls_section_begin|>"),
    ),
    block=MarkPair("◁think▷", "◁/think▷"),
)
"""Kimi-VL's template says nothing of thoughts, and its Instruct has the same one: an answer that
doesn't begin with the mark is all content. SGLang's name; its marks are several tokens each."""
GEMMA4_THOUGHTS = ThoughtFormat(
    names=("gemma4",),
    models="Gemma 4",
    recognised=Recognised(
        all_of=("<|channel>", "<channel|>"), families=("gemma4", "gemma4_unified")
    ),
    block=MarkPair("<|channel>thought", "<channel|>"),
    tokens=("<|channel>", "<channel|>"),
)
