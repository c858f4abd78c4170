"""The engine core: admission, scheduling, KV blocks and request states. No torch, no arrays.

core        sessions and requests: what comes in, what goes out (no sockets, no clock)
scheduler   which tokens the next step computes, and what its result means
request     requests, sequences and the table of their states
queue       the sequences that wait
stopping    when a sequence has ended
policies/   order, admission, preemption, shares of the step: small objects
kv/         the block pool and the block tables
process     sockets and clock around the core
"""
