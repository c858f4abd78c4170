"""The forms in which pictures and videos are prepared: a file for each of them."""
