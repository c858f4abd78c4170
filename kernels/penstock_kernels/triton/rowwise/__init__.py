"""Operations on each row by itself: norms, activations, pooling, and sums over ranks."""
