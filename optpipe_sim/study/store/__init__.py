"""Finished points on disk, and the locks of points that sweeps are computing."""
