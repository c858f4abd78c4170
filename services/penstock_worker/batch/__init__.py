"""The worker's sequences between steps, and the input batch that is made of them."""
