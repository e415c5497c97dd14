"""The commands, one module each: ``EXAMPLE``, ``SUMMARY``, ``add_options(parser)`` and ``run(arguments, out)``.

They stay light at import time, so that ``--help`` and mistakes answer at once: what a command needs it
imports when it runs.
"""
