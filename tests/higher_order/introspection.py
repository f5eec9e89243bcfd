"""Which primitives the installed JAX has, and which carry a program, by introspection.

A primitive doesn't declare its parameters, so three sources are read: the
keyword-only parameters of the rules registered for it, the keywords with which
JAX's source binds it, and the equations that the functions of `CORPUS` become.
A parameter of an equation is judged by its type, any other by its name.

This imports every module of JAX that can be imported, so it has a process of
its own: ``python tests/higher_order/introspection.py`` prints the primitives as JSON, each with
those of its parameters that carry a jaxpr or a function.
"""

import ast
import contextlib
import dataclasses
import functools
import gc
import importlib
import inspect
import json
import pathlib
import pkgutil
import re
import sys
import warnings
from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.sharding import Mesh, PartitionSpec


# Names that JAX gives to parameters with a jaxpr or a function in them.
PROGRAM_NAME = re.compile(
    """(^|_)(
        jaxprs? | thunk | exported | module | computation | body | branches
      | call | callee | callback | callable | fn | func | fun | subfuns
      | fwd | bwd | jvp | rule | partition | impl | prim | mod
    )$""",
    re.VERBOSE,
)


def is_program(parameter):
    """Whether a parameter of an equation has a jaxpr or a function in it."""
    if isinstance(parameter, (core.Jaxpr, core.ClosedJaxpr, core.Primitive)):
        return True
    if isinstance(parameter, (type, Mesh)):  # both can be called, and neither is to be
        return False
    if isinstance(parameter, (tuple, list)):
        return any(map(is_program, parameter))
    if dataclasses.is_dataclass(parameter) and not callable(parameter):
        fields = dataclasses.fields(parameter)
        return any(is_program(getattr(parameter, field.name, None)) for field in fields)
    return callable(parameter)


def import_all():
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(jax.__path__, "jax.", onerror=lambda _: None):
            # A package that is not installed makes no equations.
            with contextlib.suppress(Exception, SystemExit):
                importlib.import_module(module.name)


def jax_modules():
    modules = list(sys.modules.items())
    return [module for name, module in modules if name.split(".")[0] == "jax"]


def all_primitives():
    found = [thing for thing in gc.get_objects() if isinstance(thing, core.Primitive)]
    for module in jax_modules():
        found += [x for x in vars(module).values() if isinstance(x, core.Primitive)]
    return set(found)


# --- parameters, by the rules of a primitive ---------------------------------------


def all_rules():
    """Pairs of a primitive and something that JAX would call for it."""
    tables = [
        table
        for module in jax_modules()
        for table in vars(module).values()
        if isinstance(table, dict)
    ]
    from jax._src.interpreters import mlir

    tables += mlir._platform_specific_lowerings.values()
    for table in tables:
        for key, rule in table.items():
            if isinstance(key, core.Primitive):
                yield key, getattr(rule, "rule", rule)
    for primitive in all_primitives():
        for method in vars(primitive).values():
            yield primitive, method


def keywords_of(rule, depth=6):
    """The names of the keyword-only parameters of a rule and of what it wraps."""
    if depth == 0:
        return set()
    if isinstance(rule, functools.partial):
        own = keywords_of(rule.func, depth - 1) - set(rule.keywords)
        return own.union(*(keywords_of(arg, depth - 1) for arg in rule.args))
    rule = inspect.unwrap(getattr(rule, "__func__", rule))
    if not inspect.isfunction(rule):
        return set()
    parameters = inspect.signature(rule).parameters.values()
    own = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    for cell in rule.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            own |= keywords_of(cell.cell_contents, depth - 1)
    return own


# --- parameters, by how a primitive is bound ---------------------------------------


def calls_of_bind(source):
    """The nodes of the statements that have such a call; few do, and nodes are slow to visit."""
    if ".bind" not in source:
        return
    lines = source.splitlines()
    for statement in ast.parse(source).body:
        if any(".bind" in x for x in lines[statement.lineno - 1 : statement.end_lineno]):
            yield from ast.walk(statement)


def keywords_bound():
    """Pairs of a primitive and the names of the keywords in a call of its ``bind``."""
    for module in jax_modules():
        path = pathlib.Path(getattr(module, "__file__", None) or "")
        for node in calls_of_bind(path.read_text()) if path.suffix == ".py" else ():
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="bind")):
                    primitive = vars(module).get(name)
                case ast.Call(
                    func=ast.Attribute(
                        value=ast.Attribute(value=ast.Name(id=outer), attr=name),
                        attr="bind",
                    )
                ):
                    primitive = getattr(vars(module).get(outer), name, None)
                case _:
                    continue
            if isinstance(primitive, core.Primitive):
                yield primitive, {k.arg for k in node.keywords if k.arg}


# --- parameters, by the equations of programs --------------------------------------


@jax.custom_jvp
def _with_jvp(x):
    return jnp.sin(x)


_with_jvp.defjvp(lambda primals, tangents: (_with_jvp(*primals), tangents[0]))


def _with_vjp(**options):
    fn = jax.custom_vjp(jnp.sin)
    fn.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * x,), **options)
    return fn


def _linear_solve(x):
    def solve(matvec, b):
        return b / 2

    return lax.custom_linear_solve(lambda v: 2 * v, x, solve, solve)


def _custom_root(x):
    return lax.custom_root(lambda y: y - x, x, lambda f, y: y, lambda g, y: y)


def _linear_call(x):
    from jax.custom_derivatives import linear_call

    return linear_call(lambda r, x: r * x, lambda r, g: r * g, x, x)


def _custom_vmap(x):
    fn = jax.custom_batching.custom_vmap(jnp.sin)
    fn.def_vmap(lambda size, batched, x: (jnp.sin(x), True))
    return fn(x)


def _custom_partitioning(x):
    from jax.experimental.custom_partitioning import custom_partitioning

    fn = custom_partitioning(jnp.sin)
    fn.def_partition(
        partition=lambda *args: None,
        infer_sharding_from_operands=lambda *args: None,
        sharding_rule="i -> i",
    )
    return fn(x)


def _io_callback(x):
    from jax.experimental import io_callback

    return io_callback(np.sin, x, x)


def _shard_map(x):
    mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    specs = PartitionSpec("i")
    return jax.shard_map(jnp.sin, mesh=mesh, in_specs=specs, out_specs=specs)(x)


def _refs(x):
    ref = jax.new_ref(x)
    ref[0] = ref[1]
    ref[...] += 1
    return ref[...]


def _pallas_call(x):
    from jax.experimental import pallas

    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] + 1

    return pallas.pallas_call(kernel, out_shape=x, interpret=True)(x)


def _exported(x):
    from jax import export

    exported = export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((3,), "float32"))
    return exported.call(x)


def _random(x):
    key = jax.random.wrap_key_data(x[:2].astype("uint32"), impl="threefry2x32")
    return jax.random.normal(jax.random.split(key)[0])


# Functions of a vector of three numbers.
CORPUS = [
    jax.jit(jnp.sin),
    lambda x: lax.scan(lambda c, y: (c * y, c), 1.0, x),
    lambda x: lax.while_loop(lambda c: c.sum() < 3, lambda c: c + 1, x),
    lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
    lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos),
    jax.checkpoint(jnp.sin, policy=jax.checkpoint_policies.dots_saveable),
    _with_jvp,
    _with_vjp(),
    jax.grad(lambda x: _with_vjp(optimize_remat=True)(x).sum()),
    lambda x: jax.linearize(_with_vjp(), x)[1](x),
    _linear_solve,
    _custom_root,
    _linear_call,
    _custom_vmap,
    _custom_partitioning,
    _shard_map,
    lax.composite(jnp.sin, "jaxrewrite.sin"),
    lambda x: jax.pure_callback(np.sin, x, x),
    _io_callback,
    lambda x: jax.debug.callback(lambda x: None, x),
    lambda x: jax.debug.print("{}", x),
    lambda x: jax.debug.inspect_array_sharding(x, callback=lambda sharding: None),
    lambda x: jax.ffi.ffi_call("sin", x)(x),
    _refs,
    _pallas_call,
    _exported,
    _random,
    lambda x: jnp.searchsorted(x, x),
    lambda x: jnp.unique(x, size=2),
    lambda x: lax.reduce(x, 0.0, lambda a, b: a * b + 1, (0,)),
    lambda x: lax.reduce_window(x, 0.0, lambda a, b: a * b + 1, (2,), (1,), "SAME"),
    jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), "SAME").sum()),
    lambda x: x.at[jnp.array([0])].apply(jnp.sin),
    lambda x: [x.at[0].add(1), x.at[0].mul(2), x.at[0].max(1), x.at[0].min(1)],
    lambda x: lax.sort((x, x), num_keys=1),
    lambda x: [jnp.cumsum(x), lax.cumlogsumexp(x), lax.top_k(x, 2)],
    lambda x: jnp.linalg.svd(jnp.outer(x, x)),
    lambda x: jnp.linalg.solve(jnp.outer(x, x), x),
    lambda x: jnp.convolve(x, x),
    jax.nn.gelu,
    jax.hessian(lambda x: jax.nn.softmax(jnp.outer(x, x)).sum()),
]


def jaxprs_in(parameter):
    if isinstance(parameter, core.ClosedJaxpr):
        yield parameter.jaxpr
    elif isinstance(parameter, core.Jaxpr):
        yield parameter
    elif isinstance(parameter, (tuple, list)):
        for part in parameter:
            yield from jaxprs_in(part)


def equations_in(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for parameter in eqn.params.values():
            for inner in jaxprs_in(parameter):
                yield from equations_in(inner)


def equations_of_corpus():
    for fn in CORPUS:
        yield from equations_in(jax.make_jaxpr(fn)(jnp.arange(1.0, 4.0)).jaxpr)


# --- together ------------------------------------------------------------------------


def programs_by_primitive():
    """For each primitive the names of its parameters that hold a program."""
    import_all()
    programs = {primitive.name: set() for primitive in all_primitives()}
    by_rules = ((primitive, keywords_of(rule)) for primitive, rule in all_rules())
    for primitive, names in chain(by_rules, keywords_bound()):
        programs[primitive.name].update(filter(PROGRAM_NAME.search, names))
    for eqn in equations_of_corpus():
        found = (name for name, value in eqn.params.items() if is_program(value))
        programs.setdefault(eqn.primitive.name, set()).update(found)
    return programs


if __name__ == "__main__":
    named = sorted(programs_by_primitive().items())
    print(json.dumps({name: sorted(programs) for name, programs in named}))
