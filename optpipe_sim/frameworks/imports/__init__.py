"""Imports from frameworks: configs, logs and traces of real runs."""
