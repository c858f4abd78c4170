"""`penstock plan`: how many engine cores hold an objective, by the simulator.

objective   what is to hold: bounds of percentiles
traffic     the requests, at any share of their rate
estimate    a step's cost on a GPU, from figures of the device and the model
arrivals    of the requests those that it takes to judge a trial
trial       one simulated run of so many engine cores, and what limits it
search      the fewest engine cores, load against latency, what if
plan        the result, for JSON; as_text, svg: for people
"""
