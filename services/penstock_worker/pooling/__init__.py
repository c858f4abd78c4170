"""Models that give vectors or classes instead of text.

loading   chooses between reference and triton, each of which has recipes
runner, device_runner   execute their plans, at once or by a device's queue
encoders, decoders, device_body   the two kinds of model, each behind `Body` or `DeviceBody`
pool     from the tokens' vectors to what was asked for
heads    classification heads
"""
