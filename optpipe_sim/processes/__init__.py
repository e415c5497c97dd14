"""Processes: one way to start, watch, message and end them.

There are two kinds. *Workers* are forks that run a function and exchange messages with the process that
started them, such as the engines of a race. A *fresh* Python runs a module, so its caller may have
threads and need not be picklable: a solver in the background, the ranks of a run. All of them end with
the process that started them (`signals.leave_with_parent`), even if it is killed.
"""
