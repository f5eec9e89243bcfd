"""The policy that leaves values implicit, or makes them dense, by a model of costs."""
