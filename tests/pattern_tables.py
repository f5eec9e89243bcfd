"""Tables of patterns whose rules tell when they answer, and programs that nearly match."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Literal

import jaxrewrite


def spied(table, names=None):
    """A table of the same patterns, or of some, and a list of the rules that answer.

    ``names`` are those of rules; a pattern among them is one of the formulas of its rule. The table
    is made once: what its patterns look for is traced once for all tests.
    """
    rules, answers = _spied(table, names if names is None else tuple(names))
    answers.clear()
    return rules, answers


@functools.cache
def _spied(table, names):
    rules, answers = jaxrewrite.Rules(), []
    # One rule for several formulas stays one: where two of them match, it is not ambiguous.
    telling = functools.cache(lambda fn: _telling(fn, answers))
    for pattern in table.patterns:
        if names is None or pattern.fn.__name__ in names or pattern in names:
            register = rules.rewrite(
                pattern.before,
                when=pattern.when,
                precedence=pattern.precedence,
                probes=pattern.probes,
                keep=pattern.keep,
            )
            register(telling(pattern.fn))
    return rules, answers


def _telling(fn, answers):
    @functools.wraps(fn)
    def telling(*operands, **statics):
        result = fn(*operands, **statics)
        if result is not NotImplemented:
            answers.append(fn.__name__)
        return result

    return telling


def answered(table, fn, *args, names=None):
    """The names of the rules that answer in a program."""
    rules, answers = spied(table, names)
    jaxrewrite.make_jaxpr(fn, rules=rules)(*args)
    return answers


def sharded(x):
    mesh = jax.make_mesh((1,), ("i",))
    spec = jax.sharding.PartitionSpec()
    return lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, spec))


def narrowed(x):
    narrow = {jnp.float32: jnp.bfloat16, jnp.float64: jnp.float32}
    return lax.convert_element_type(
        lax.convert_element_type(x, narrow.get(x.dtype.type, jnp.complex64)), x.dtype
    )


# What is done to one result inside of a pattern, so that it is another program.
CHANGES = {
    "checkpoint_name": lambda x: checkpoint_name(x, "name"),
    "optimization_barrier": lax.optimization_barrier,
    "sharding constraint": sharded,
    "dtype": narrowed,
    "factor": lambda x: x * 3,
}

# The same for matrices: what reduces them or what they are combined with has other axes.
CHANGES_OF_SQUARES = {"axes": lambda x: x.T, "keepdims": lambda x: x[0] + 0 * x}


def look_alikes(fn, *args, scalars=(), keeps=False):
    """Programs that differ from a function of arrays in one of its equations.

    Each is a name and a function. ``scalars`` are numbers that a pattern may bind to any
    literal; ``keeps`` is for a pattern that allows its inside to be used elsewhere.
    """
    closed = jax.make_jaxpr(fn)(*args)
    jaxpr = closed.jaxpr
    inner = [
        i
        for i, eqn in enumerate(jaxpr.eqns)
        if len(eqn.outvars) == 1
        and eqn.outvars[0] not in jaxpr.outvars
        # A conversion to the same dtype may as well be outside of what is found.
        and eqn.primitive.name != "convert_element_type"
        and jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
    ]
    twice = made_twice(jaxpr)
    for i in inner:
        shape = jaxpr.eqns[i].outvars[0].aval.shape
        is_square = len(shape) == 2 and shape[0] == shape[1] > 1
        for name, change in (CHANGES | (CHANGES_OF_SQUARES if is_square else {})).items():
            yield f"{name} at {i}", _changed(closed, i, change)
        # Of what is made twice, one may be used elsewhere.
        if not keeps and i not in twice:
            yield f"escaping at {i}", _changed(closed, i, lambda x: x, escapes=True)
    for i, eqn in enumerate(jaxpr.eqns):
        for k, atom in enumerate(eqn.invars):
            is_number = type(atom) is Literal and np.isfinite(atom.val).all()
            if is_number and np.ndim(atom.val) == 0 and atom.val not in scalars:
                other = np.asarray(atom.val) * 1.5 + 0.25
                yield f"literal at {i}", _changed(closed, i, literal=(k, other))


def made_twice(jaxpr):
    """The numbers of the equations that make what another one makes, too."""
    names, made = {}, {}
    for i, eqn in enumerate(jaxpr.eqns):
        operands = [str(a) if type(a) is Literal else names.get(a, a) for a in eqn.invars]
        key = (eqn.primitive.name, str(eqn.params), *operands)
        made.setdefault(key, []).append(i)
        names |= {var: (key, k) for k, var in enumerate(eqn.outvars)}
    return {i for same in made.values() if len(same) > 1 for i in same}


def _changed(closed, where, change=None, escapes=False, literal=None):
    """A jaxpr as a function, with one equation changed."""
    jaxpr = closed.jaxpr

    def call(*args):
        known = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        known |= zip(jaxpr.invars, args, strict=True)
        escaping = []
        for i, eqn in enumerate(jaxpr.eqns):
            operands = [a.val if type(a) is Literal else known[a] for a in eqn.invars]
            if i == where and literal is not None:
                operands[literal[0]] = np.asarray(
                    literal[1], eqn.invars[literal[0]].aval.dtype
                )
            results = _evaluated(eqn, operands)
            if i == where and change is not None:
                results = [change(results[0])]
                escaping = results if escapes else []
            known |= zip(eqn.outvars, results, strict=True)
        outs = [a.val if type(a) is Literal else known[a] for a in jaxpr.outvars]
        return [*outs, *escaping]

    return call


def _evaluated(eqn, operands):
    """The results of one equation, also of one that calls a function."""
    given = eqn.primitive.get_bind_params(eqn.params)
    # JAX 0.12 gives parameters alone, and the functions are among them.
    functions, params = given if type(given) is tuple else ((), given)
    results = eqn.primitive.bind(*functions, *operands, **params)
    return results if eqn.primitive.multiple_results else [results]
