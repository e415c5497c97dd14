"""Finished points on disk, and which sweep computes which of the others."""
