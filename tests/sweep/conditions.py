"""What operations ask of variables, and axes of them."""


def ndim(*ns):
    return lambda v: v.ndim in ns


def kind(letters):
    return lambda v: v.kind in letters


def nonempty(v):
    return v.array.size > 0


def square(v):
    return v.ndim >= 2 and v.shape[-1] == v.shape[-2] and v.shape[-1] > 0


def some_axes(v):
    return v.ndim > 0


def axis_of(b, v):
    axis = b.s.random.randrange(v.ndim)
    return axis if b.s.chance(0.6) else axis - v.ndim


def axes_of(b, v):
    """``None``, an axis, or several."""
    which = b.s.choice(("all", "one", "one", "some"))
    if which == "all" or v.ndim == 0:
        return None
    if which == "one":
        return axis_of(b, v)
    return tuple(sorted(b.s.random.sample(range(v.ndim), b.s.random.randint(1, v.ndim))))
