"""From a request's bytes to checked fields, sampling parameters and token ids."""
