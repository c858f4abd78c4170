"""The models of this gateway: how a request finds its own, and what each of them is reached by."""
