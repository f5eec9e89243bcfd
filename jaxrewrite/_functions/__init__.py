"""Rules for functions: which calls in a program are of a function that has rules.

JAX stages a function under `jax.jit`, `jax.custom_jvp` or `jax.custom_vjp` as one call, an
equation with the function's jaxpr. `called` has a primitive for such a function, for the tables of
rules, and `recognise` tells which calls are calls of it.
"""
