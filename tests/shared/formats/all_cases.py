"""The cases of all families. A new one needs its line here."""

from tests.shared.formats.case import FormatCases
from tests.shared.formats.deepseek import V3, V31
from tests.shared.formats.glm import CASES as GLM
from tests.shared.formats.glm import GLM4
from tests.shared.formats.harmony import CASES as HARMONY
from tests.shared.formats.hermes import CASES as HERMES
from tests.shared.formats.kimi_k2 import CASES as KIMI_K2
from tests.shared.formats.kimi_k2 import KIMI_VL
from tests.shared.formats.kimi_k3 import CASES as KIMI_K3
from tests.shared.formats.marked_lists import MARKED_LISTS
from tests.shared.formats.marked_values import MARKED_VALUES
from tests.shared.formats.qwen3_coder import CASES as QWEN3_CODER

ALL: tuple[FormatCases, ...] = (
    *(HERMES, QWEN3_CODER, GLM, GLM4, KIMI_K2, KIMI_VL, KIMI_K3, V3, V31, HARMONY),
    *MARKED_LISTS,
    *MARKED_VALUES,
)
