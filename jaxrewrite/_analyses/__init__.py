"""Facts about the variables of a jaxpr."""
