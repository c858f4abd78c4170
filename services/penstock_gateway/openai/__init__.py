"""OpenAI's endpoints: one file each, and what they share.

chat_completions  POST /v1/chat/completions    chat_request, chat_reply, messages
completions       POST /v1/completions         completion_request, completion_reply, prompts
responses         POST /v1/responses           responses_*
models            GET /v1/models

endpoint      a generating endpoint's course   fields    request fields that both take
decoding      JSON to structs, plain errors    neutral   known fields that do nothing yet
sampling      fields to SamplingParams         batch     the generations of one HTTP request
structure     what an output must look like    search    beam search and best_of
shown         what a reply shows of tokens
answer        deltas to replies                logprobs  token texts and log-probabilities
request_terms  tenant, priority and deadline of a request
"""
