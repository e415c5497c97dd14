"""Print each sentence as the tables give it, and mark those that no page contains: python -m results.claims"""

from __future__ import annotations

import sys
from pathlib import Path

from optpipe_sim.files import read_text

from . import PAGES, load_sentences, missing_sentences, open_tables

RESULTS = Path("results")
pages = [read_text(page) for page in PAGES]
wrong = 0
for name, sentences in load_sentences(RESULTS / "claims", open_tables(RESULTS)).items():
    missing = dict(missing_sentences(sentences, pages))
    wrong += len(missing)
    for sentence in sentences:
        print(f"{'MISSING' if sentence in missing else 'found'}  {name}: {sentence}")
        if sentence in missing:
            print(f"         nearest: {missing[sentence]}")
sys.exit(bool(wrong))
