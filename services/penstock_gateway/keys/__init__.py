"""API keys: who asks, what they may, and how much of it in a minute.

ring     the keys, by digest            caller       whose key a request brought
access   the layer that asks for one    rate_limits  requests and tokens a minute
"""
