"""The search where treatments are to be chosen: which plain problems, patterns and plans it anneals."""
