"""One tenant that asks for all that is allowed, beside another's ordinary streams."""
