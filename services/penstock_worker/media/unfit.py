"""Items that a model can't encode."""


class UnfitItem(Exception):
    """The model can't take the item. The message is for the client that sent it."""
