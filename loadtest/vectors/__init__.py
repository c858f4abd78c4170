"""How fast and how exact vectors of texts are, beside the libraries that their makers use."""
