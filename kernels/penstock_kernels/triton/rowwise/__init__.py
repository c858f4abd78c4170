"""Operations on each row independently: norms, activations, pooling, and sums over ranks."""
