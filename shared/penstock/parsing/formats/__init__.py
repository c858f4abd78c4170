"""The formats that are known, one module to a family. A new one needs its line here."""

from penstock.parsing.format import AnyFormat
from penstock.parsing.formats.apertus import APERTUS, APERTUS_THOUGHTS
from penstock.parsing.formats.command import COMMAND, COMMAND_R, COMMAND_THOUGHTS
from penstock.parsing.formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V4, DEEPSEEK_V31, DEEPSEEK_V32
from penstock.parsing.formats.functionary import FUNCTIONARY, FUNCTIONARY_V32
from penstock.parsing.formats.gemma import FUNCTIONGEMMA, GEMMA4
from penstock.parsing.formats.glm import GLM4, GLM45
from penstock.parsing.formats.harmony import HARMONY
from penstock.parsing.formats.hermes import HERMES
from penstock.parsing.formats.hunyuan import HY_V3, HY_V3_THOUGHTS
from penstock.parsing.formats.kimi_k2 import KIMI_K2
from penstock.parsing.formats.kimi_k3 import KIMI_K3, KIMI_K3_THOUGHTS
from penstock.parsing.formats.lfm2 import LFM2
from penstock.parsing.formats.llama3 import LLAMA3_JSON
from penstock.parsing.formats.minicpm5 import MINICPM5
from penstock.parsing.formats.minimax import MINIMAX_M2, MINIMAX_M3, MINIMAX_M3_THOUGHTS
from penstock.parsing.formats.mistral import MISTRAL
from penstock.parsing.formats.muse_glimmer import MUSE_GLIMMER, MUSE_GLIMMER_THOUGHTS
from penstock.parsing.formats.plain_json import JSON
from penstock.parsing.formats.pythonic import OLMO3, PYTHONIC
from penstock.parsing.formats.qwen3_coder import QWEN3_CODER
from penstock.parsing.formats.seed_oss import SEED_OSS, SEED_THOUGHTS
from penstock.parsing.formats.solar import SOLAR_OPEN, SOLAR_THOUGHTS
from penstock.parsing.formats.step3 import STEP3
from penstock.parsing.formats.think import (
    APRIEL_THOUGHTS,
    DEEPSEEK_R1,
    GEMMA4_THOUGHTS,
    GRANITE_THOUGHTS,
    MISTRAL_THOUGHTS,
    THINK,
)
from penstock.parsing.formats.tool_lists import (
    GIGACHAT3,
    GIGACHAT30,
    GRANITE,
    INTERNLM,
    NEMOTRON_JSON,
    NEMOTRON_MINI,
    PHI4_MINI,
    TOOL_CALLS,
)

FORMATS: tuple[AnyFormat, ...] = (
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    QWEN3_CODER,
    GLM45,
    GLM4,
    KIMI_K2,
    KIMI_K3,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    MINIMAX_M2,
    MINIMAX_M3,
    SEED_OSS,
    GEMMA4,
    FUNCTIONGEMMA,
    LFM2,
    PYTHONIC,
    OLMO3,
    COMMAND,
    COMMAND_R,
    TOOL_CALLS,
    HY_V3,
    NEMOTRON_JSON,
    NEMOTRON_MINI,
    GRANITE,
    PHI4_MINI,
    INTERNLM,
    GIGACHAT3,
    GIGACHAT30,
    FUNCTIONARY,
    FUNCTIONARY_V32,
    MINICPM5,
    STEP3,
    APERTUS,
    SOLAR_OPEN,
    MUSE_GLIMMER,
    HARMONY,
    JSON,
    MISTRAL_THOUGHTS,
    SEED_THOUGHTS,
    COMMAND_THOUGHTS,
    GEMMA4_THOUGHTS,
    APRIEL_THOUGHTS,
    GRANITE_THOUGHTS,
    APERTUS_THOUGHTS,
    HY_V3_THOUGHTS,
    KIMI_K3_THOUGHTS,
    MINIMAX_M3_THOUGHTS,
    MUSE_GLIMMER_THOUGHTS,
    SOLAR_THOUGHTS,
    THINK,
    DEEPSEEK_R1,
)
