"""Preparations of pictures, ours beside transformers' own."""

from __future__ import annotations

from typing import Any

from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import (
    DeepseekOcr2ImageProcessorPil,
)
from transformers.models.deepseek_vl.image_processing_pil_deepseek_vl import (
    DeepseekVLImageProcessorPil,
)
from transformers.models.deepseek_vl_hybrid.image_processing_pil_deepseek_vl_hybrid import (
    DeepseekVLHybridImageProcessorPil,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import (
    MiniCPMV4_6ImageProcessorPil,
)
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import (
    PaddleOCRVLImageProcessorPil,
)
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from penstock.forms.anyres import AnyresImages
from penstock.forms.canvas import CanvasImages
from penstock.forms.documents import DocumentImages
from penstock.forms.fitted import FittedImages
from penstock.forms.fixed import FixedImages
from penstock.forms.naflex import NaflexImages
from penstock.forms.overlapping import OverlappingImages
from penstock.forms.patches import PatchImages
from penstock.forms.pixels import Pixels as P
from penstock.forms.pooled import PooledImages
from penstock.forms.registry import ImagePreparation
from penstock.forms.rows import RowImages
from penstock.forms.scanned import ScannedImages
from penstock.forms.sheets import BarredImages, SheetImages
from penstock.forms.sliced import SlicedImages
from penstock.forms.tiled import TiledImages
from penstock.forms.twofold import TwofoldImages
from penstock.forms.windowed import WindowedImages
from tests.shared.media.cohere_pictures import CommandPictures
from tests.shared.media.janus_pictures import MakersPictures
from tests.shared.media.kimi_vl_pictures import MEAN, STD, KimiVLPictures
from tests.shared.media.lfm2_pictures import Lfm2Pictures
from tests.shared.media.llama4_pictures import Llama4Pictures
from tests.shared.media.minicpm_pictures import MiniCPMPictures
from tests.shared.media.molmo_pictures import MolmoPictures
from tests.shared.media.phi3_pictures import Phi3Pictures
from tests.shared.media.phi4_pictures import Phi4Pictures
from tests.shared.media.without_torchvision import (
    KimiPictures,
    MiniMaxPictures,
    StepPictures,
    UnifiedPictures,
)

CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def pixels(resample: int, colours: Any) -> P:
    return P(resample=resample, rescale=1 / 255, mean=colours[0], std=colours[1])


FORMS = tuple((24 * rows, 24 * columns) for rows in range(1, 4) for columns in range(1, 5))


class _Split(GotOcr2ImageProcessorPil):
    """The processor of pictures as InternVL's processor of prompts calls it."""

    crop_to_patches = True


MARKED: dict[str, int] = {
    "first_token": 10,
    "whole_begin": 14,
    "begin": 10,
    "end": 11,
    "line_end": 13,
}
CASES: dict[str, tuple[Any, ImagePreparation]] = {
    "clip": (
        CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}),
        FixedImages(pixels=pixels(3, CLIP), height=28, width=28, shortest_edge=28, rows=4),
    ),
    "clip with bars": (
        CLIPImageProcessorPil(size={"shortest_edge": 20}, crop_size={"height": 33, "width": 26}),
        FixedImages(pixels=pixels(3, CLIP), height=33, width=26, shortest_edge=20, rows=4),
    ),
    "clip of one size": (
        CLIPImageProcessorPil(
            size={"height": 40, "width": 30},
            do_center_crop=True,
            crop_size={"height": 28, "width": 28},
        ),
        FixedImages(pixels=pixels(3, CLIP), height=28, width=28, resized=(40, 30), rows=4),
    ),
    "llava": (
        LlavaImageProcessorPil(
            size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, do_pad=True
        ),
        FixedImages(
            pixels=pixels(3, CLIP), height=28, width=28, shortest_edge=28, squared=True, rows=4
        ),
    ),
    "deepseek_vl": (
        DeepseekVLImageProcessorPil(
            size={"height": 28, "width": 28},
            min_size=6,
            image_mean=[0.5, 0.4, 0.3],
            image_std=[0.5] * 3,
        ),
        FixedImages(
            pixels=pixels(3, ((0.5, 0.4, 0.3), HALF[1])), height=28, width=28, fitted=6, rows=4
        ),
    ),
    "deepseek_vl_hybrid": (
        DeepseekVLHybridImageProcessorPil(
            size={"height": 28, "width": 28}, min_size=6, high_res_size={"height": 50, "width": 50}
        ),
        TwofoldImages(
            pixels=pixels(3, CLIP),
            large_pixels=pixels(3, CLIP),
            side=28,
            large=50,
            least=6,
            rows=4,
            background=(127, 127, 127),
        ),
    ),
    "siglip": (
        SiglipImageProcessorPil(size={"height": 32, "width": 32}, resample=2),
        FixedImages(pixels=pixels(2, HALF), height=32, width=32, rows=4),
    ),
    "gemma3n": (
        SiglipImageProcessorPil(size={"height": 32, "width": 32}, resample=2, do_normalize=False),
        FixedImages(pixels=P(resample=2, rescale=1 / 255), height=32, width=32, rows=4),
    ),
    "gemma3": (
        Gemma3ImageProcessorPil(size={"height": 32, "width": 32}, do_pan_and_scan=False),
        FixedImages(pixels=pixels(2, HALF), height=32, width=32, rows=4),
    ),
    "gemma3 with crops": (
        Gemma3ImageProcessorPil(
            size={"height": 32, "width": 32},
            do_pan_and_scan=True,
            pan_and_scan_min_crop_size=20,
            pan_and_scan_max_num_crops=4,
            pan_and_scan_min_ratio_to_activate=1.2,
        ),
        ScannedImages(
            pixels=pixels(2, HALF),
            height=32,
            width=32,
            rows=4,
            begin="",
            end="",
            scan=True,
            least=20,
        ),
    ),
    "gemma4": (
        Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=3, max_soft_tokens=70),
        PooledImages(pixels=P(resample=3, rescale=1 / 255), patch=4, merge=3, most=70),
    ),
    "gemma4 of more tokens": (
        Gemma4ImageProcessorPil(patch_size=2, pooling_kernel_size=2, max_soft_tokens=280),
        PooledImages(pixels=P(resample=3, rescale=1 / 255), patch=2, merge=2, most=280),
    ),
    "gemma4 12b": (
        UnifiedPictures(patch_size=4, pooling_kernel_size=3, max_soft_tokens=70),
        PooledImages(pixels=P(resample=3, rescale=1 / 255), patch=4, merge=3, most=70),
    ),
    "idefics3": (
        Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 16}),
        TiledImages(pixels=pixels(1, HALF), longest_edge=64, tile=16, rows=4),
    ),
    "idefics3 in small": (
        Idefics3ImageProcessorPil(size={"longest_edge": 16}, max_image_size={"longest_edge": 16}),
        TiledImages(pixels=pixels(1, HALF), longest_edge=16, tile=16, rows=4),
    ),
    "smolvlm": (
        SmolVLMImageProcessorPil(size={"longest_edge": 60}, max_image_size={"longest_edge": 16}),
        TiledImages(pixels=pixels(1, HALF), longest_edge=60, tile=16, rows=4),
    ),
    "smolvlm whole": (
        SmolVLMImageProcessorPil(
            size={"longest_edge": 64}, max_image_size={"longest_edge": 16}, do_image_splitting=False
        ),
        TiledImages(pixels=pixels(1, HALF), longest_edge=64, tile=16, rows=4, split=False),
    ),
    "qwen2_vl": (
        Qwen2VLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112}),
        PatchImages(
            pixels=pixels(3, CLIP), min_pixels=56 * 56, max_pixels=112 * 112, patch=14, merge=2
        ),
    ),
    "internvl": (
        _Split(size={"height": 24, "width": 24}, max_patches=6),
        CanvasImages(pixels=pixels(3, CLIP), tile=24, rows=4, most=6),
    ),
    "internvl of several": (
        _Split(size={"height": 24, "width": 24}, min_patches=2, max_patches=12),
        CanvasImages(pixels=pixels(3, CLIP), tile=24, rows=4, least=2, most=12),
    ),
    "internvl whole": (
        GotOcr2ImageProcessorPil(size={"height": 24, "width": 24}),
        CanvasImages(pixels=pixels(3, CLIP), tile=24, rows=4, split=False),
    ),
    "llama4": (
        Llama4Pictures(tile=24, most=6),
        FittedImages(
            pixels=P(resample=2, rescale=1 / 255, mean=HALF[0], std=HALF[1], rounded=True),
            tile=24,
            rows=4,
            most=6,
        ),
    ),
    "llava_next": (
        LlavaNextImageProcessorPil(
            size={"shortest_edge": 24},
            crop_size={"height": 24, "width": 24},
            image_grid_pinpoints=[list(form) for form in FORMS],
        ),
        AnyresImages(pixels=pixels(3, CLIP), tile=24, side=4, forms=FORMS, most=12),
    ),
    "paddleocr_vl": (
        PaddleOCRVLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112}),
        PatchImages(
            pixels=pixels(3, CLIP),
            min_pixels=56 * 56,
            max_pixels=112 * 112,
            patch=14,
            merge=2,
            frames=1,
            widened=True,
        ),
    ),
    "kimi_k25": (
        KimiPictures(size={"max_height": 9, "max_width": 9}, patch_size=8, max_patches=40),
        PatchImages(
            pixels=pixels(3, HALF),
            min_pixels=16 * 16,
            max_pixels=40 * 64,
            patch=8,
            merge=2,
            frames=1,
            most_side=9,
        ),
    ),
    "kimi_vl": (
        KimiVLPictures(8, 40),
        PatchImages(
            pixels=pixels(3, (MEAN, STD)),
            min_pixels=16 * 16,
            max_pixels=40 * 64,
            patch=8,
            merge=2,
            frames=1,
            most_side=512,
        ),
    ),
    "minimax_m3": (
        MiniMaxPictures(size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112}),
        PatchImages(
            pixels=pixels(3, CLIP), min_pixels=56 * 56, max_pixels=112 * 112, patch=14, merge=2
        ),
    ),
    "lfm2_vl": (
        Lfm2Pictures(
            encoder_patch_size=4,
            tile_size=16,
            min_image_tokens=4,
            max_image_tokens=16,
            max_tiles=6,
        ),
        NaflexImages(
            pixels=pixels(2, HALF), patch=4, merge=2, min_rows=4, max_rows=16, tile=16, most=6
        ),
    ),
    "lfm2_vl without tiles": (
        Lfm2Pictures(
            encoder_patch_size=4, min_image_tokens=6, max_image_tokens=9, do_image_splitting=False
        ),
        NaflexImages(
            pixels=pixels(2, HALF),
            patch=4,
            merge=2,
            min_rows=6,
            max_rows=9,
            tile=512,
            split=False,
        ),
    ),
    "lfm2_vl without the whole": (
        Lfm2Pictures(
            encoder_patch_size=4,
            tile_size=24,
            min_image_tokens=4,
            max_image_tokens=16,
            use_thumbnail=False,
            max_pixels_tolerance=1.0,
        ),
        NaflexImages(
            pixels=pixels(2, HALF),
            patch=4,
            merge=2,
            min_rows=4,
            max_rows=16,
            tile=24,
            large=1.0,
            whole=False,
        ),
    ),
    "deepseek_ocr2": (
        DeepseekOcr2ImageProcessorPil(size={"height": 128, "width": 128}, tile_size=96),
        DocumentImages(
            pixels=pixels(3, HALF), patch=2, tile=96, page=128, tile_rows=144, page_rows=256
        ),
    ),
    "cohere2_vision": (
        CommandPictures(size={"height": 24, "width": 24}, max_patches=7),
        CanvasImages(pixels=pixels(3, CLIP), tile=24, rows=9, most=7, fitting=True),
    ),
    "minicpmv": (
        MiniCPMPictures(4, 40, 6),
        SlicedImages(pixels=pixels(3, HALF), patch=4, whole=1, scale=40, queries=6),
    ),
    "minicpmv of few slices": (
        MiniCPMPictures(7, 100, 6, most=2),
        SlicedImages(pixels=pixels(3, HALF), patch=7, whole=1, scale=100, most=2, queries=6),
    ),
    "minicpmv4_6": (
        MiniCPMV4_6ImageProcessorPil(patch_size=4, scale_resolution=40),
        SlicedImages(pixels=pixels(3, HALF), patch=4, scale=40),
    ),
    "minicpmv4_6 of few": (
        MiniCPMV4_6ImageProcessorPil(patch_size=7, scale_resolution=100, max_slice_nums=2),
        SlicedImages(pixels=pixels(3, HALF), patch=7, scale=100, most=2),
    ),
    "minicpmv4_6 without slices": (
        MiniCPMV4_6ImageProcessorPil(patch_size=4, scale_resolution=40, slice_mode=False),
        SlicedImages(pixels=pixels(3, HALF), patch=4, scale=40, split=False),
    ),
    "phi4_multimodal": (
        Phi4Pictures(tile=28, patch=7, most=36),
        SheetImages(pixels=pixels(2, HALF), tile=28, patch=7),
    ),
    "phi4_multimodal of few tiles": (
        Phi4Pictures(tile=48, patch=12, most=5),
        SheetImages(pixels=pixels(2, HALF), tile=48, patch=12, most=5),
    ),
    "janus of its makers": (
        MakersPictures(40, 8),
        FixedImages(
            pixels=pixels(3, HALF), height=40, width=40, rows=25, fitted=6, fitted_down=True
        ),
    ),
    "phi3_v": (
        Phi3Pictures(tile=28, patch=7, most=16),
        BarredImages(pixels=pixels(2, CLIP), tile=28, patch=7),
    ),
    "phi3_v of few tiles": (
        Phi3Pictures(tile=48, patch=12, most=5),
        BarredImages(pixels=pixels(2, CLIP), tile=48, patch=12, most=5),
    ),
    "molmo2": (
        MolmoPictures(32, 4, (2, 1), most=7),
        OverlappingImages(
            pixels=pixels(2, HALF), side=32, patch=4, margins=(2, 1), most=7, **MARKED
        ),
    ),
    "molmo2 of squares of three": (
        MolmoPictures(20, 4, (0, 0), (3, 2), most=4),
        OverlappingImages(
            pixels=pixels(2, HALF), side=20, patch=4, margins=(0, 0), pool=(3, 2), most=4, **MARKED
        ),
    ),
    "step3p7": (
        StepPictures(size={"height": 96, "width": 96}, patch_size=64, max_image_size=200),
        WindowedImages(
            pixels=pixels(2, CLIP),
            whole=96,
            tile=64,
            longest=200,
            patch=2,
            whole_rows=144,
            tile_rows=64,
        ),
    ),
    "step3p7 of small windows": (
        StepPictures(size={"height": 48, "width": 48}, patch_size=24, max_image_size=250),
        WindowedImages(
            pixels=pixels(2, CLIP),
            whole=48,
            tile=24,
            longest=250,
            patch=2,
            whole_rows=36,
            tile_rows=9,
        ),
    ),
    "pixtral": (
        PixtralImageProcessorPil(size={"longest_edge": 100}, patch_size={"height": 8, "width": 8}),
        RowImages(pixels=pixels(3, CLIP), longest_edge=100, patch=8),
    ),
    "anyres": (
        LlavaOnevisionImageProcessorPil(
            size={"height": 24, "width": 24},
            image_grid_pinpoints=[list(form) for form in FORMS],
            image_mean=HALF[0],
            image_std=HALF[1],
        ),
        AnyresImages(pixels=pixels(3, HALF), tile=24, side=4, forms=FORMS, most=4),
    ),
    "glm4v": (
        Glm4vImageProcessorPil(size={"shortest_edge": 2 * 57 * 57, "longest_edge": 2 * 99 * 113}),
        PatchImages(
            pixels=pixels(3, CLIP),
            min_pixels=2 * 57 * 57,
            max_pixels=2 * 99 * 113,
            patch=14,
            merge=2,
            of_all=True,
        ),
    ),
    "qwen3_vl": (
        Qwen2VLImageProcessorPil(
            size={"shortest_edge": 64 * 64, "longest_edge": 128 * 128},
            patch_size=16,
            image_mean=HALF[0],
            image_std=HALF[1],
        ),
        PatchImages(
            pixels=pixels(3, HALF), min_pixels=64 * 64, max_pixels=128 * 128, patch=16, merge=2
        ),
    ),
}
SIZES = [(1, 1), (1, 9), (33, 32), (28, 28), (200, 31), (31, 200), (64, 48), (16, 16), (17, 15)]
