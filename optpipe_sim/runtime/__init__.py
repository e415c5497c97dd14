"""Schedules on real devices: the stages of a model in torch, one linear program per rank, measured.

torch is imported nowhere else in the project, and only the command line imports this package.
"""
