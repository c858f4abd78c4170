"""Models of the Hugging Face hub: their names, what of a repository is wanted, downloads that go on
where they were cut off, and the hub's cache on this machine.

The cache's layout is huggingface_hub's own, so other programs find what is downloaded here, and the
other way round. Source of the layout and of the protocol: huggingface_hub's documentation
("Understand caching") and its HTTP clients.
"""
