"""From a JSON schema as a client has written it to one that llguidance serves exactly.

What comes out says nothing by negation: no `not`, `oneOf`, `if`, `dependentRequired`, `contains` or
`propertyNames` is left, and each of its documents is one of the schema's own.
"""
