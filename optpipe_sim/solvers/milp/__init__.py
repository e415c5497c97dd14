"""OptPipe's mixed-integer program (arXiv 2510.05186), reconstructed, and its solvers."""
