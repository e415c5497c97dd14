"""Measurements beside the package: speed, the search's referee, and what predictions are worth on real devices."""
