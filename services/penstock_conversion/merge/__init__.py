"""`penstock merge`: an adapter folded into its base model."""
