"""Annealing of the order and of the treatment of every activation together."""
