"""Greedy constructions with searched parameters: AdaOffload and its order of waves."""
