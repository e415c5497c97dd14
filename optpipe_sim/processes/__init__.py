"""Processes: one way to start, watch, message and end them.

There are two kinds. *Workers* are forks that run a function and exchange messages with the process that
started them, such as the engines of a race. A *fresh* Python runs a module; the caller may have threads and need not
be picklable. A solver in the background and the ranks of a run are such. All of them end
with the process that started them (`signals.leave_with_parent`), even if it is killed.
"""
