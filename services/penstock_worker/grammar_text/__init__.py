"""A client's grammar before it is compiled in the worker: what may be said of it without a model.

errors           GrammarError
source           from a definition to llguidance's own text; bounds that it has no option for
structural_tag   tags in free text, as such a text
compile          llguidance, with our limits
child            the process that compiles each grammar first
trial            that process, as the worker sees it

Nothing here imports torch, directly or otherwise: the child is to be small and quick to start.
"""
