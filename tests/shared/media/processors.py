"""Folders in the hub's format of models that see, with processors of transformers over them: tiny
tokenizers, small pictures, no weights."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
from transformers import PreTrainedTokenizerFast
from transformers.models.deepseek_vl.image_processing_pil_deepseek_vl import (
    DeepseekVLImageProcessorPil,
)
from transformers.models.deepseek_vl.processing_deepseek_vl import DeepseekVLProcessor
from transformers.models.deepseek_vl_hybrid.image_processing_pil_deepseek_vl_hybrid import (
    DeepseekVLHybridImageProcessorPil,
)
from transformers.models.deepseek_vl_hybrid.processing_deepseek_vl_hybrid import (
    DeepseekVLHybridProcessor,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.gemma3n.processing_gemma3n import Gemma3nProcessor
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.janus.image_processing_pil_janus import JanusImageProcessorPil
from transformers.models.janus.processing_janus import JanusProcessor
from transformers.models.kimi_k25.processing_kimi_k25 import Kimi_K25Processor
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import (
    MiniCPMV4_6ImageProcessorPil,
)
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import (
    PaddleOCRVLImageProcessorPil,
)
from transformers.models.paddleocr_vl.processing_paddleocr_vl import PaddleOCRVLProcessor
from transformers.models.phi4_multimodal.processing_phi4_multimodal import Phi4MultimodalProcessor
from transformers.models.pixtral import image_processing_pil_pixtral
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qianfan_ocr.processing_qianfan_ocr import QianfanOCRProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from tests.shared.media.kimi_vl_pictures import KimiVLPictures
from tests.shared.media.media_tokenizer import JANUS
from tests.shared.media.phi4_pictures import Phi4Pictures
from tests.shared.media.without_torchvision import KimiPictures, UnifiedPictures


def deepseek_vl(fast: PreTrainedTokenizerFast) -> Any:
    fast.image_token = "<image>"
    pictures = DeepseekVLImageProcessorPil(size={"height": 24, "width": 24}, min_size=6)
    return unchecked(DeepseekVLProcessor)(pictures, fast, num_image_tokens=16)


def deepseek_vl_hybrid(fast: PreTrainedTokenizerFast) -> Any:
    fast.image_token = "<image>"
    pictures = DeepseekVLHybridImageProcessorPil(
        size={"height": 24, "width": 24},
        min_size=6,
        high_res_size={"height": 40, "width": 40},
        high_res_image_mean=[0.5] * 3,
        high_res_image_std=[0.2] * 3,
    )
    return unchecked(DeepseekVLHybridProcessor)(pictures, fast, num_image_tokens=16)


def _name_tokens(fast: PreTrainedTokenizerFast, texts: Mapping[str, str]) -> None:
    """What processors ask a release's tokenizer for: each token's text and id, by its name."""
    for name, text in texts.items():
        setattr(fast, f"{name}_token", text)
        setattr(fast, f"{name}_token_id", fast.convert_tokens_to_ids(text))


def janus(fast: PreTrainedTokenizerFast) -> Any:
    names = {"image_token": "<image>", "boi_token": JANUS[0], "eoi_token": JANUS[1]}
    for name, text in names.items():
        setattr(fast, name, text)
    pictures = JanusImageProcessorPil(
        size={"height": 24, "width": 24}, min_size=6, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return unchecked(JanusProcessor)(pictures, fast, num_image_tokens=16)


def gemma3(fast: PreTrainedTokenizerFast) -> Any:
    fast.add_tokens([])
    boi, eoi = "<start_of_image>", "<end_of_image>"
    _name_tokens(fast, {"boi": boi, "eoi": eoi, "image": "<image_soft_token>"})
    pictures = Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
    return Gemma3Processor(pictures, fast, image_seq_length=4)


def gemma3n(fast: PreTrainedTokenizerFast) -> Any:
    """The token that ends a picture is the last of our rows, and has their placeholder."""
    texts = {
        "boi": "<start_of_image>",
        "eoi": "<end_of_image>",
        "image": "<image_soft_token>",
        "boa": "<|audio>",
        "eoa": "<audio|>",
        "audio": "<|audio|>",
    }
    _name_tokens(fast, texts)

    class Ended(unchecked(Gemma3nProcessor)):  # type: ignore[misc]
        def __call__(self, *given: Any, **named: Any) -> Any:
            found = super().__call__(*given, **named)
            ids = found["input_ids"]
            end = self.tokenizer.convert_tokens_to_ids(texts["eoi"])
            found["input_ids"] = np.where(ids == end, self.image_token_id, ids)
            return found

    pictures = SiglipImageProcessorPil(
        size={"height": 64, "width": 64}, resample=2, do_normalize=False
    )
    return Ended(None, pictures, fast, image_seq_length=4)


def gemma4(fast: PreTrainedTokenizerFast) -> Any:
    """Its module asks for the image processor that needs torchvision, of which it takes a function
    that Pillow's has too."""
    from transformers.models.gemma4 import image_processing_pil_gemma4

    name = "transformers.models.gemma4.image_processing_gemma4"
    sys.modules.setdefault(name, image_processing_pil_gemma4)
    from transformers.models.gemma4.processing_gemma4 import Gemma4Processor

    texts = {
        "boi": "<|image>",
        "eoi": "<image|>",
        "image": "<|image|>",
        "boa": "<|audio>",
        "eoa": "<audio|>",
        "audio": "<|audio|>",
    }
    _name_tokens(fast, texts)
    pictures = Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=2, max_soft_tokens=70)
    return without_videos(Gemma4Processor)(None, pictures, fast, None)


def gemma4_unified(fast: PreTrainedTokenizerFast) -> Any:
    """Has the tokens of `gemma4`."""
    gemma4(fast)
    from transformers.models.gemma4 import image_processing_pil_gemma4

    name = "transformers.models.gemma4_unified.image_processing_gemma4_unified"
    function = image_processing_pil_gemma4.get_aspect_ratio_preserving_size
    kwargs = image_processing_pil_gemma4.Gemma4ImageProcessorKwargs
    sys.modules.setdefault(
        name,
        cast(
            ModuleType,
            SimpleNamespace(
                Gemma4UnifiedImageProcessorKwargs=kwargs, get_aspect_ratio_preserving_size=function
            ),
        ),
    )
    from transformers.models.gemma4_unified.processing_gemma4_unified import Gemma4UnifiedProcessor

    pictures = UnifiedPictures(patch_size=4, pooling_kernel_size=2, max_soft_tokens=70)
    return unchecked(Gemma4UnifiedProcessor)(None, pictures, fast, None)


def without_videos(processor: Any) -> Any:
    """The class, without a processor of videos, which needs torchvision."""

    def check(self: Any, name: str, argument: Any) -> Any:
        if argument is not None:
            return processor.check_argument_for_proper_class(self, name, argument)
        return None

    return type(processor.__name__, (processor,), {"check_argument_for_proper_class": check})


def unchecked(processor: Any) -> Any:
    """The class, with an image processor that isn't transformers'."""
    return type(
        processor.__name__, (processor,), {"check_argument_for_proper_class": lambda *_: None}
    )


def smolvlm(fast: PreTrainedTokenizerFast) -> Any:
    """Its processor asks for a package that writes out numbers, for videos."""
    processing_smolvlm.num2words = processing_smolvlm.num2words or str
    pictures = SmolVLMImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 16}
    )
    return without_videos(processing_smolvlm.SmolVLMProcessor)(pictures, fast, None, 4)


def internvl(fast: PreTrainedTokenizerFast) -> Any:
    names = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<|video_pad|>",
    }
    for name, text in names.items():
        setattr(fast, name, text)
        setattr(fast, f"{name}_id", fast.convert_tokens_to_ids(text))
    pictures = GotOcr2ImageProcessorPil(size={"height": 24, "width": 24}, max_patches=6)
    return without_videos(InternVLProcessor)(pictures, fast, image_seq_length=4)


def qianfan_ocr(fast: PreTrainedTokenizerFast) -> Any:
    names = {"start_image": "<img>", "end_image": "</img>", "context_image": "<IMG_CONTEXT>"}
    _name_tokens(fast, names)
    pictures = GotOcr2ImageProcessorPil(size={"height": 24, "width": 24}, max_patches=6)
    return QianfanOCRProcessor(pictures, fast, image_seq_length=4)


def pixtral(fast: PreTrainedTokenizerFast, merge: int) -> Any:
    """Patches of 8 pixels, whatever is merged behind them. Its module asks for the image processor
    that needs torchvision, of which it takes a function that Pillow's has too."""
    name = "transformers.models.pixtral.image_processing_pixtral"
    sys.modules.setdefault(name, image_processing_pil_pixtral)
    from transformers.models.pixtral.processing_pixtral import PixtralProcessor

    pictures = PixtralImageProcessorPil(
        size={"longest_edge": 100}, patch_size={"height": 8, "width": 8}
    )
    return PixtralProcessor(pictures, fast, patch_size=8, spatial_merge_size=merge)


def kimi_vl(fast: PreTrainedTokenizerFast) -> Any:
    """A text grows by its pictures as in Kimi K2.5's."""
    return _of_kimi(fast, KimiVLPictures(8, 40))


def kimi_k25(fast: PreTrainedTokenizerFast) -> Any:
    pictures = KimiPictures(
        size={"max_height": 9, "max_width": 9}, patch_size=8, max_patches=40, resample=3
    )
    return _of_kimi(fast, pictures)


def _of_kimi(fast: PreTrainedTokenizerFast, pictures: Any) -> Any:
    texts = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    _name_tokens(fast, texts)
    return unchecked(Kimi_K25Processor)(pictures, fast, None)


def phi4_multimodal(fast: PreTrainedTokenizerFast) -> Any:
    """With 32 patches in a row of a tile, whatever their size: its count of embeddings is made for
    so many."""
    _name_tokens(fast, {kind: f"<|{kind}|>" for kind in ("image", "audio")})
    return unchecked(Phi4MultimodalProcessor)(Phi4Pictures(64, 2, 12), None, fast)


def minicpmv(fast: PreTrainedTokenizerFast) -> Any:
    texts = {
        "image": "<|image_pad|>",
        "video": "<|video_pad|>",
        "image_start": "<image>",
        "image_end": "</image>",
        "slice_start": "<slice>",
        "slice_end": "</slice>",
        "image_id_start": "<image_id>",
        "image_id_end": "</image_id>",
    }
    _name_tokens(fast, texts)
    pictures = MiniCPMV4_6ImageProcessorPil(patch_size=4, scale_resolution=32)
    videos = SimpleNamespace(slice_mode=True, downsample_mode="16x", model_input_names=[])
    return unchecked(MiniCPMV4_6Processor)(pictures, videos, fast)


def paddleocr_vl(fast: PreTrainedTokenizerFast) -> Any:
    fast.image_token = "<|image_pad|>"
    fast.image_token_id = fast.convert_tokens_to_ids("<|image_pad|>")
    pictures = PaddleOCRVLImageProcessorPil(
        size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112}
    )
    return PaddleOCRVLProcessor(pictures, fast)


def lighton_ocr(fast: PreTrainedTokenizerFast) -> Any:
    """Pictures in whole squares of patches, as the release's own processor asks for them. Its
    module, too, asks for what needs torchvision."""
    name = "transformers.models.pixtral.image_processing_pixtral"
    sys.modules.setdefault(name, image_processing_pil_pixtral)
    from transformers.models.lighton_ocr.processing_lighton_ocr import LightOnOcrProcessor

    texts = {"image": "<|image_pad|>", "image_break": "[IMG_BREAK]", "image_end": "<|vision_end|>"}
    _name_tokens(fast, texts)
    pictures = PixtralImageProcessorPil(
        size={"longest_edge": 100}, patch_size={"height": 16, "width": 16}
    )
    return LightOnOcrProcessor(pictures, fast, patch_size=8, spatial_merge_size=2)
