"""Benchmarks: the cost of dense and of implicit execution. Run ``python -m bench``."""
