"""Models that give vectors or classes instead of text.

runner   executes their plans
encoders, decoders   the two kinds of model, each behind `Body`
pool     from the tokens' vectors to what was asked for
heads    classification heads
"""
