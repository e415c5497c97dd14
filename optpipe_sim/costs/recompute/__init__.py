"""What is recomputed: choices for whole runs and their tables (`regions`), levels of a stage (`levels`)."""
