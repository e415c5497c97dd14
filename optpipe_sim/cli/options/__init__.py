"""Options of the command line and the types of their values; light, as `parser` is."""
