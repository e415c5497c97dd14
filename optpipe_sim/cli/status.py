"""Exit statuses of the command line, and the version of what it prints with ``--json``."""

DONE, NO, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

# Raised where a key changes its meaning or goes away; new keys may come at any time.
SCHEMA = 1
