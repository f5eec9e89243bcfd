"""A type, a rule and a program by `jaxrewrite._core`, in a process without the other rooms.

``python core_alone.py FOLDER`` runs it, with the folder of the package.
"""

import importlib
import pathlib
import sys
import types

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jax.tree_util import tree_leaves, tree_map


def loaded_alone(folder):
    """The core's modules by name, with nothing but a folder in place of the package."""
    library = types.ModuleType("jaxrewrite")
    library.__path__ = [str(folder)]
    sys.modules["jaxrewrite"] = library
    names = [
        path.stem for path in (folder / "_core").glob("*.py") if path.stem != "__init__"
    ]
    return library, {
        x: importlib.import_module(f"jaxrewrite._core.{x}") for x in sorted(names)
    }


def public_names(core):
    """What the example uses of the package, in a few lines over the core."""
    Value, is_value = core["value"].Value, core["value"].is_value

    class ArrayValue(Value):
        _is_base = True

        def aval(self):
            return jax.eval_shape(lambda value: value.materialise(), self)

    def rewritten(fn, values):
        """The function of arrays as a jaxpr on the leaves of values."""
        dense = [x.materialise() if is_value(x) else x for x in values]
        jaxpr = jax.make_jaxpr(fn)(*dense).jaxpr
        settings = core["settings"].Settings(core["rules"].RulesInForce(), "forbid")
        builder = core["rewrite"].Rewriter(core["traces"].Rewriting(settings))
        likes = [tree_map(jax.typeof, x) for x in values]
        operands = [
            builder.operand(*pair) for pair in zip(jaxpr.invars, likes, strict=True)
        ]
        (result,) = builder.run(jaxpr, operands)
        leaves = tree_leaves(operands)
        return builder.finish(leaves, [result], jax.tree.structure(0), jaxpr.debug_info)

    def transform(fn):
        def call(*values):
            made = rewritten(fn, values)
            (result,) = jaxpr_as_fun(made.closed)(*made.consts, *tree_leaves(values))
            return result

        return call

    def make_jaxpr(fn):
        return lambda *values: rewritten(fn, values).jaxpr

    register = core["rules"].register
    return {f.__name__: f for f in (ArrayValue, register, transform, make_jaxpr)}


def run(library):
    """A type, a rule and a program, as a user writes them."""

    class LowRank(library.ArrayValue):
        a: jax.Array
        b: jax.Array

        def materialise(self):
            return self.a @ self.b

    @library.register("dot_general")
    def _(x: jax.Array, y: LowRank, *, dimension_numbers, **params):
        if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())):
            return NotImplemented
        return (x @ y.a) @ y.b

    def model(weight, x):
        return jnp.tanh(x @ weight).sum()

    a, b, x = (jax.random.normal(jax.random.key(i), (5, 5)) for i in range(3))
    weight = LowRank(a[:, :2], b[:2])
    result = library.transform(model)(weight, x)
    dense = model(weight.materialise(), x)
    assert jnp.allclose(result, dense, rtol=1e-5), (result, dense)
    steps = library.make_jaxpr(model)(weight, x).eqns
    shapes = [(eqn.primitive.name, eqn.outvars[0].aval.shape) for eqn in steps]
    first = [("dot_general", (5, 2)), ("dot_general", (5, 5))]
    assert shapes == [*first, ("tanh", (5, 5)), ("reduce_sum", ())], shapes


def main(folder):
    library, core = loaded_alone(folder)
    vars(library).update(public_names(core))
    run(library)
    rooms = {name.split(".")[1] for name in sys.modules if name.startswith("jaxrewrite.")}
    assert rooms == {"_compat", "_core"}, rooms


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
