"""Ready value types: matrices with structure, weights, sparse arrays, units.

Loaded when it is first used, with the rules of all types.
"""
