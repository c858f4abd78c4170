"""The Python library: one more front end, speaking the same protocol as the gateway.

sync              LLM: generate and chat, order kept
asynchronous      AsyncLLM: the same as streams in an event loop
engine_lifecycle  how it starts and ends its engine core; engine_control: pauses, sleep, weights
background_loop   the event loop of LLM, in a thread
keywords          which keywords LLM takes, and vLLM's names for them
engine_args       EngineArgs, for scripts that parse a command line into them
outputs           RequestOutput and its parts, shaped as vLLM's
assembly          a RequestOutput, as it grows, and what beam_search returns
pooling           encode, embed, classify and score; pooling_jobs: their requests
pooling_outputs   what they return, shaped as vLLM's
prompts           what may be given as a prompt or a conversation
media_given       what may be given as a picture, a sound or a video; media_prompts: with a prompt
encoder_decoder   prompts whose two halves are given apart
adapters          the adapters that calls name
given_weights     weights that the caller has in memory, on their way to the workers
model_tokenizer   what get_tokenizer() gives
"""

from penstock.client import BeamSearchParams
from penstock.llm.assembly import BeamSearchOutput, BeamSearchSequence
from penstock.llm.asynchronous import AsyncLLM
from penstock.llm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from penstock.llm.prompts import TextPrompt, TokensPrompt
from penstock.llm.sync import LLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "TextPrompt",
    "TokensPrompt",
]
