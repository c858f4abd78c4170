"""The formats that are known, one module to a family. A new one needs its line here."""

from penstock.parsing.format import AnyFormat
from penstock.parsing.formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from penstock.parsing.formats.glm import GLM45
from penstock.parsing.formats.harmony import HARMONY
from penstock.parsing.formats.hermes import HERMES
from penstock.parsing.formats.kimi_k2 import KIMI_K2
from penstock.parsing.formats.llama3 import LLAMA3_JSON
from penstock.parsing.formats.mistral import MISTRAL
from penstock.parsing.formats.plain_json import JSON
from penstock.parsing.formats.qwen3_coder import QWEN3_CODER
from penstock.parsing.formats.think import DEEPSEEK_R1, THINK

FORMATS: tuple[AnyFormat, ...] = (
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    QWEN3_CODER,
    GLM45,
    KIMI_K2,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    HARMONY,
    JSON,
    THINK,
    DEEPSEEK_R1,
)
