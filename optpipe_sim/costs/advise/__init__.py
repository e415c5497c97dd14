"""Advice: how to split a model over a number of GPUs."""
