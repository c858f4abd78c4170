"""The families of models whose tower sees. A new one needs its line here.

The decoder after a tower is one of penstock.families.FAMILIES.
"""

from penstock.families.vision.cohere_vision import AYA_VISION, COHERE2_VISION
from penstock.families.vision.deepseek_ocr import DEEPSEEK_OCR
from penstock.families.vision.deepseek_ocr2 import DEEPSEEK_OCR2
from penstock.families.vision.deepseek_vl import DEEPSEEK_VL
from penstock.families.vision.deepseek_vl_hybrid import DEEPSEEK_VL_HYBRID
from penstock.families.vision.exaone4_5 import EXAONE4_5
from penstock.families.vision.gemma3 import GEMMA3_VISION
from penstock.families.vision.gemma3n import GEMMA3N_VISION
from penstock.families.vision.gemma4 import GEMMA4_VISION
from penstock.families.vision.gemma4_unified import GEMMA4_UNIFIED_VISION
from penstock.families.vision.glm4v import GLM4V, GLM_OCR
from penstock.families.vision.granite4_vision import GRANITE4_VISION
from penstock.families.vision.idefics3 import IDEFICS3
from penstock.families.vision.internvl import INTERNVL
from penstock.families.vision.janus import JANUS
from penstock.families.vision.kimi_k25 import KIMI_K25, KIMI_VL
from penstock.families.vision.lfm2_vl import LFM2_VL
from penstock.families.vision.lighton_ocr import LIGHTON_OCR
from penstock.families.vision.llama4 import LLAMA4_VISION
from penstock.families.vision.llava import LLAVA, LLAVA_ONEVISION
from penstock.families.vision.llava_next import LLAVA_NEXT
from penstock.families.vision.minicpmv import MINICPMV
from penstock.families.vision.minicpmv4_6 import MINICPMV4_6
from penstock.families.vision.minimax_m3 import MINIMAX_M3_VISION
from penstock.families.vision.mllama import MLLAMA
from penstock.families.vision.molmo2 import MOLMO2_VISION
from penstock.families.vision.multi_modality import MULTI_MODALITY
from penstock.families.vision.paddleocr_vl import PADDLEOCR_VL
from penstock.families.vision.phi3_v import PHI3_V
from penstock.families.vision.phi4_multimodal import PHI4_MULTIMODAL
from penstock.families.vision.pixtral import MISTRAL3
from penstock.families.vision.qianfan_ocr import QIANFAN_OCR
from penstock.families.vision.qwen2_5_omni import QWEN2_5_OMNI
from penstock.families.vision.qwen3_5 import QWEN3_5_VISION
from penstock.families.vision.qwen3_omni import QWEN3_OMNI
from penstock.families.vision.qwen_vl import QWEN2_5_VL, QWEN2_VL, QWEN3_VL
from penstock.families.vision.reading import HARMLESS, VISION, TextHalf, VisionFamily
from penstock.families.vision.step3p7 import STEP3P7_VISION

VISION_FAMILIES: dict[str, VisionFamily] = {
    each.name: each
    for each in (
        LLAVA,
        LLAVA_ONEVISION,
        IDEFICS3,
        QWEN2_VL,
        QWEN2_5_VL,
        QWEN3_VL,
        QWEN3_5_VISION,
        EXAONE4_5,
        QWEN2_5_OMNI,
        QWEN3_OMNI,
        GEMMA3_VISION,
        GEMMA3N_VISION,
        GEMMA4_VISION,
        GEMMA4_UNIFIED_VISION,
        INTERNVL,
        MISTRAL3,
        LIGHTON_OCR,
        LFM2_VL,
        LLAVA_NEXT,
        PADDLEOCR_VL,
        KIMI_K25,
        KIMI_VL,
        MINICPMV,
        MINICPMV4_6,
        MINIMAX_M3_VISION,
        GRANITE4_VISION,
        QIANFAN_OCR,
        LLAMA4_VISION,
        MLLAMA,
        GLM4V,
        GLM_OCR,
        DEEPSEEK_OCR,
        DEEPSEEK_OCR2,
        DEEPSEEK_VL,
        DEEPSEEK_VL_HYBRID,
        JANUS,
        MULTI_MODALITY,
        PHI3_V,
        PHI4_MULTIMODAL,
        STEP3P7_VISION,
        MOLMO2_VISION,
        COHERE2_VISION,
        AYA_VISION,
    )
}

VISION_CLASSES: dict[str, VisionFamily] = {
    name: family for family in VISION_FAMILIES.values() for name in family.hub_classes
}
"""Families by the class that a hub folder's config.json names."""

__all__ = ["HARMLESS", "VISION", "VISION_CLASSES", "VISION_FAMILIES", "TextHalf", "VisionFamily"]
