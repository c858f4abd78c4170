"""Which tokens the next step computes, and what its result does to sequences, slots and blocks."""
