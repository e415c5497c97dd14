"""Simulated annealing of programs and treatments, evaluated incrementally."""
