"""The commands, one module each: ``EXAMPLE``, ``SUMMARY``, ``add_options(parser)`` and ``run(arguments, out)``.

They import nothing heavy at import time, so that ``--help`` and usage errors are instant; a command
imports what it needs when it runs.
"""
