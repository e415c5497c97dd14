"""The program: ``optpipe-sim``, and ``python -m optpipe_sim``."""

import sys


def run() -> int:
    """Run the command line; Ctrl-C while its modules are imported is no traceback, either."""
    try:
        from .cli import main

        return main()
    except KeyboardInterrupt:
        print("optpipe-sim: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(run())
