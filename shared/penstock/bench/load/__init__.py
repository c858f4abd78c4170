"""A closed- and open-loop load generator for any OpenAI-compatible server.

From a shell: `penstock bench serve --help`.  From Python: `run(LoadOptions(...))`.

run, runner         one run, from options to report; closed and open loop
options, arguments  what to run; the same as flags
workload, words     seeded prompts, lengths and arrival times
target, connection  the server, and one request over a connection of its own
reception, http1, sse, record   what comes back, and when
statistics, report  distributions; the result as JSON and as tables
"""
