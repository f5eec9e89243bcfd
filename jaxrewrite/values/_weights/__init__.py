"""Weights of models: adapted ones, and small integers with scales."""
