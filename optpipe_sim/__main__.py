"""``python -m optpipe_sim``: the command line."""

from .cli import main

raise SystemExit(main())
