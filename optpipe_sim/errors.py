"""One family of errors. Each message is a single line a user can act on."""

from __future__ import annotations


class OptPipeError(Exception):
    """Whatever optpipe_sim refuses or cannot do."""


class ProfileError(OptPipeError):
    """A profile that says something impossible; names the file, the key, and what would be right."""


class InvalidSchedule(OptPipeError):
    """A schedule that is not one: an op missing, doubled, unknown, or on the wrong device."""


class Deadlock(OptPipeError):
    """A program that can never go on; names the ops that wait, where, and what for."""


class OutOfMemory(OptPipeError):
    """No order of execution fits the memory limit; names the least limit that would do."""


class NoSolution(OptPipeError):
    """No schedule was found (or none exists) for what was asked."""


class Infeasible(NoSolution):
    """Proven: what was asked has no schedule."""


class RuntimeFault(OptPipeError):
    """A real run that went wrong; names the op and the device, or the rank and its last op."""
