"""The program: ``optpipe-sim``, and ``python -m optpipe_sim``."""

import sys

# what `cli` says of Ctrl-C, for where it is not imported yet
INTERRUPTED = (
    '{"schema": 2, "error": {"kind": "interrupted", "message": "interrupted", "exit_status": 130}}'
)


def run() -> int:
    """Run the command line; Ctrl-C while its modules are imported is no traceback, either."""
    try:
        from .cli import main

        return main()
    except KeyboardInterrupt:
        print("optpipe-sim: interrupted", file=sys.stderr)
        if "--json" in sys.argv:
            print(INTERRUPTED)
        return 130


if __name__ == "__main__":
    raise SystemExit(run())
