"""The production EngineCore under a virtual clock: a day of traffic in seconds.

trace, synthetic   what arrives: read from a file, or made from a seed
prompts            requests as the core gets them
cost, fit          how long a step takes; fitted to a recording
worker, replica    an engine core and its modelled worker
routing            which replica gets a request
simulation         the events, in the order of their times
histogram, series, metrics   what is kept of it, in bounded memory
report, chart      what is shown
"""
