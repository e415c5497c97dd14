"""Solvers: the best schedule under a memory limit, with a proven lower bound."""
