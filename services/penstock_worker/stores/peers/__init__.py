"""KV blocks of other engine cores' workers, and what is kept for them."""
