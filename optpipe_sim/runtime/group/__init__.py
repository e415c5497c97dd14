"""The processes of one pipeline, and the weights that several of its stages have copies of."""
