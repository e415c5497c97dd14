"""The model of a run: its layers in torch, its stages, their saved activations and tokens."""
