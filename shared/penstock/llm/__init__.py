"""The Python library: one more front end, speaking the same protocol as the gateway.

sync             LLM: generate and chat, order kept, a progress bar
asynchronous     AsyncLLM: the same as streams in an event loop
launched_engine  the child process that supervises an engine core and its worker
outputs          RequestOutput and its parts, shaped as vLLM's
pooling          encode, embed, classify and score
pooling_outputs  what they return, shaped as vLLM's
prompts          what may be given as a prompt or a conversation
"""

from penstock.llm.asynchronous import AsyncLLM
from penstock.llm.outputs import CompletionOutput, Logprob, RequestOutput
from penstock.llm.sync import LLM

__all__ = ["LLM", "AsyncLLM", "CompletionOutput", "Logprob", "RequestOutput"]
