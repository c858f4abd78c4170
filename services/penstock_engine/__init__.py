"""The engine core: admission, scheduling, KV blocks and request states. No torch, no arrays.

core            the state machine: events in, effects out (no sockets, no clock)
from_frontends  what front ends say, and what it does
from_workers    what workers say, and what it does
scheduler       which tokens the next step computes, and what its result means
draft           a step while it is decided, and while it is in flight
request         requests, sequences and the table of their states
grammars        what structured output follows: compiled by the worker, waited for here
remote_kv       a prefix that is on its way from another engine: waited for, not for ever
queue           the sequences that wait; fair_queue: in a line for each tenant
door            who is let in; deadlines: whose time is over
stopping        when a sequence has ended; endings: its one terminal output
policies/       whose turn it is and who makes way (fcfs, priority, fair), admission: small objects
kv/             the block pool and tables, what blocks hold and who can reuse it, the host tier
timeline        where a sequence's time went
audit           proves the books
process         sockets and clock around the core
record/         writes down what a core is told, and replays it
simulate/       the core under a virtual clock
commands        what `penstock replay`, `simulate` and `fit-cost` do
"""
