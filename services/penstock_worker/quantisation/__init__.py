"""Weight formats: how files store them, and how each backend multiplies with them."""
