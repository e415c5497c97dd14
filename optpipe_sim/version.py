"""The version of this package; below everything else, so that anyone may ask."""

__version__ = "0.1.0"
