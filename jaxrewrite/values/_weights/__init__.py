"""Weights of models: adapted weights, and small integers with scales."""
