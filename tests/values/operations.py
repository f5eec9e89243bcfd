"""How many operations a program takes, counted in its jaxpr."""

import math

import jax


class Unknown(Exception):
    """How many operations an equation takes depends on more than its shapes."""


# How often a loop turns is not known, and neither is what other programs do.
_UNKNOWN = ("custom_vmap_call", "pure_callback", "while")


def count(fn, *operands):
    """About how many numbers a function computes, and multiplications of matrices makes.

    Operands may have avals as leaves: nothing is computed. An equation counts as
    many operations as its largest result has numbers, unless
    there is more to say about its primitive.

    Raises
    ------
    Unknown
        If that depends on the numbers.
    """
    return _of_jaxpr(jax.make_jaxpr(fn)(*operands).jaxpr)


def _of_jaxpr(jaxpr):
    return sum(map(_of, jaxpr.eqns))


def _size(atoms):
    return max((math.prod(atom.aval.shape) for atom in atoms), default=0)


def _of(eqn):
    name, params = eqn.primitive.name, eqn.params
    if name == "custom_linear_solve":
        return _of_jaxpr(params["jaxprs"].solve.jaxpr)
    if name in _UNKNOWN:
        raise Unknown(name)
    if name == "cond":
        return max(_of_jaxpr(branch.jaxpr) for branch in params["branches"])
    inner = [jaxpr for key in ("jaxpr", "call_jaxpr") if (jaxpr := params.get(key))]
    if inner:
        own = _of_jaxpr(getattr(inner[0], "jaxpr", inner[0]))
        return own * params.get("length", 1)
    results = _size(eqn.outvars)
    if name == "dot_general":
        (summed, _), _ = params["dimension_numbers"]
        return results * math.prod(eqn.invars[0].aval.shape[axis] for axis in summed)
    if name == "fft":
        return results * math.log2(max(math.prod(params["fft_lengths"]), 2))
    if name in ("cholesky", "eigh", "lu", "householder_product", "geqrf", "svd"):
        return _size(eqn.invars) * min(eqn.invars[0].aval.shape[-2:])
    if name == "triangular_solve":
        return results * eqn.invars[0].aval.shape[-1]
    if name == "sort":
        return results * math.log2(max(results, 2))
    return results
