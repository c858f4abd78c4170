"""A closed- and open-loop load generator for any OpenAI-compatible server.

From a shell: `penstock bench serve --help`.  From Python: `run(LoadOptions(...))`.

run         one run, from options to report; closed and open loop
options     what to run; the same as flags
workload    seeded prompts, lengths and arrival times
target      the server
reception   what comes back, and when; record: of one request
report      distributions; the result as JSON and as tables
"""
