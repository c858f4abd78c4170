"""The forms of preparation of pictures and videos: a new one needs its name here, and nowhere
else."""

from penstock.forms.anyres import AnyresImages
from penstock.forms.aspects import AspectImages
from penstock.forms.canvas import CanvasImages
from penstock.forms.documents import DocumentImages
from penstock.forms.fitted import FittedImages
from penstock.forms.fixed import FixedFrames, FixedImages
from penstock.forms.naflex import NaflexImages
from penstock.forms.overlapping import MarkedFrames, OverlappingImages
from penstock.forms.patches import PatchImages, VideoFrames
from penstock.forms.pooled import PooledFrames, PooledImages
from penstock.forms.rows import RowImages
from penstock.forms.scanned import ScannedImages
from penstock.forms.sheets import BarredImages, SheetImages
from penstock.forms.sliced import SlicedFrames, SlicedImages
from penstock.forms.tiled import TiledImages
from penstock.forms.twofold import TwofoldImages
from penstock.forms.windowed import WindowedImages

ImagePreparation = (
    FixedImages
    | ScannedImages
    | TiledImages
    | PatchImages
    | CanvasImages
    | FittedImages
    | RowImages
    | AnyresImages
    | NaflexImages
    | SlicedImages
    | PooledImages
    | DocumentImages
    | SheetImages
    | BarredImages
    | WindowedImages
    | OverlappingImages
    | TwofoldImages
    | AspectImages
)
VideoPreparation = VideoFrames | FixedFrames | PooledFrames | SlicedFrames | MarkedFrames
