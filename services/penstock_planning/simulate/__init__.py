"""The production core under a virtual clock, with workers that are models of a step's cost."""
