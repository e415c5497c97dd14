"""Exit statuses of the command line, and the version of what it prints with ``--json``."""

DONE, NO, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

# Raised when a key changes its meaning or is removed; keys may be added at any time.
SCHEMA = 2
