"""Mixtures of experts: which rows an expert computes, its products, and sums over experts."""
