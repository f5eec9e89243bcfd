"""Benchmarks: what dense and implicit execution cost. Run ``python -m bench``."""
