"""The quantised types of GGUF files, one module each."""

from penstock_worker.quantisation.gguf.iq4_nl import IQ4_NL
from penstock_worker.quantisation.gguf.iq4_xs import IQ4_XS
from penstock_worker.quantisation.gguf.mxfp4 import MXFP4
from penstock_worker.quantisation.gguf.q2_k import Q2_K
from penstock_worker.quantisation.gguf.q3_k import Q3_K
from penstock_worker.quantisation.gguf.q4_0 import Q4_0
from penstock_worker.quantisation.gguf.q4_1 import Q4_1
from penstock_worker.quantisation.gguf.q4_k import Q4_K
from penstock_worker.quantisation.gguf.q5_0 import Q5_0
from penstock_worker.quantisation.gguf.q5_1 import Q5_1
from penstock_worker.quantisation.gguf.q5_k import Q5_K
from penstock_worker.quantisation.gguf.q6_k import Q6_K
from penstock_worker.quantisation.gguf.q8_0 import Q8_0

GGUF_FORMATS = (
    *(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0),
    *(Q2_K, Q3_K, Q4_K, Q5_K, Q6_K),
    *(IQ4_NL, IQ4_XS, MXFP4),
)

__all__ = ["GGUF_FORMATS"]
