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
