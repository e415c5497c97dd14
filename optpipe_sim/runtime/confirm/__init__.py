"""Compare predictions with real runs."""
