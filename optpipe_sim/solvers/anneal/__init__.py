"""Simulated annealing over programs, evaluated by a compiled replay."""
