"""Models that see, as those of `penstock.families.vision`."""
