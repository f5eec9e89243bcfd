"""The interpreter: values, rules, and the walk that rewrites a jaxpr."""
