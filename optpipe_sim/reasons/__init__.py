"""Explanations: why ops wait, why devices idle, why activations are offloaded."""
