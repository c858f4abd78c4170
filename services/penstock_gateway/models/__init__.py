"""The models of this gateway: how a request finds its model, and how each model is reached."""
