"""Processes: one way to start, watch, message and end them.

Two kinds are started here. *Workers* are forks that run a function and exchange messages with who
started them: the engines of a race. A *fresh* Python runs a module, and needs neither a picklable
caller nor a caller without threads: a solver in the background, the ranks of a run. None of them
outlives the process that started it (`signals.leave_with_parent`), not even where that is killed.
"""
