"""A user's program with annotations: mypy and pyright check it strictly, and it runs.

``assert_type`` says what a checker takes an expression for; at run time it does nothing. A line
with ``type: ignore`` is a mistake that checkers have to find: an ignored error that is none is
itself an error. Functions whose names begin with ``mistakes``, and ``pytrees``, do not run.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh
from jaxtyping import ArrayLike, Float

import jaxrewrite
import jaxrewrite.numpy as rnp
from jaxrewrite import (
    ArrayValue,
    Batched,
    Report,
    Rules,
    Value,
    checkpoints,
    field,
    patterns,
    primitives,
    testing,
    transform,
    values,
)


# JAX's own stubs do not say of which type a device is.
ones: Callable[..., Array] = jnp.ones  # pyright: ignore


# --- a type and its rules -----------------------------------------------------------------


class Scaled(ArrayValue):
    """``x * scale``, named."""

    x: Float[Array, "n m"]
    scale: Float[Array, ""]
    name: str = field(static=True, default="")

    def materialise(self) -> Array:
        return self.x * self.scale


rules = Rules()


@jaxrewrite.register(lax.dot_general_p)
def product(x: ArrayLike, v: Scaled, **params: Any) -> Any:
    return jaxrewrite.bind("dot_general", x, v.x, **params) * v.scale


@rules.register("neg", precedence=1)
def negative(v: Scaled) -> Scaled:
    return Scaled(v.x, -v.scale, v.name)


@rules.rewrite(lambda x: jnp.log(1 + x), probes=[(np.float32(1),)])  # pyright: ignore
def log1p(x: Float[Array, "*shape"]) -> Array:
    return jnp.log1p(x)


if TYPE_CHECKING:  # In the global table it would be in force in other tests.
    jaxrewrite.rewrite(lambda x: jnp.log(1 + x))(log1p)  # pyright: ignore


class Sourced(values.Annotated):
    """An array and where it is from; a rule for a ready type would be in force elsewhere."""

    array: Array
    source: str = field(static=True)
    outer = 5


@values.annotation_rule(Sourced, "erf")
def sourced(x: Sourced, *, primitive: Any, **params: Any) -> Any:
    return jaxrewrite.bind(primitive, x.array, **params)


def the_type() -> Scaled:
    v = Scaled(ones((3, 3)), ones(()), name="v")
    assert_type(v, Scaled)
    assert_type(v.x, Array)
    assert_type(v.name, str)
    assert_type(v.shape, tuple[int, ...])
    assert_type(v.dtype, np.dtype[Any])
    assert_type(v.ndim, int)
    assert_type(v.size, int)
    assert_type(len(v), int)
    assert_type(v.materialise(), Array)
    # Rules keep their own signatures.
    assert_type(negative(v), Scaled)
    assert_type(rules.patterns == (), bool)
    return v


def mistakes_about_the_type(v: Scaled) -> None:
    Scaled(ones((3, 3)))  # type: ignore
    Scaled(ones((3, 3)), ones(()), label="v")  # type: ignore
    v.scales  # type: ignore
    v.name = "w"  # type: ignore
    v + "text"  # type: ignore
    (v + 1).name  # type: ignore
    values.Diagnal  # type: ignore
    jaxrewrite.transfrom  # type: ignore
    patterns.stabel  # type: ignore


# --- operators ------------------------------------------------------------------------------


def operators(v: Scaled, x: Array) -> None:
    """A result is a value or an array, as the rules say."""
    assert_type(v @ x, Array | Any)
    assert_type(x @ v, Array | Any)
    assert_type(v + 1, Array | Any)
    assert_type(2.0 * v, Array | Any)
    assert_type(v - v, Array | Any)
    assert_type(-v, Array | Any)
    assert_type(abs(v), Array | Any)
    assert_type(divmod(v, 2), tuple[Array | Any, Array | Any])
    assert_type(v[0, 1:], Array | Any)
    assert_type(v < 1, Array | Any)
    assert_type(v == v, Array | Any)
    assert_type(v.T, Array | Any)
    assert_type(v.reshape(9).astype(jnp.float16), Array | Any)
    as_array: Array = x @ v  # It goes where an array goes, and has what an array has.
    assert_type(as_array, Array)
    assert_type((v @ x).shape, tuple[int, ...] | Any)
    doubled = 2.0 * v
    if isinstance(doubled, Scaled):
        assert_type(doubled.name, str)


def operators_of_annotated_arrays(x: Array) -> values.Unitful:
    """They carry what their operands do."""
    length = values.Unitful(x, "m")
    assert_type(length * 2, values.Unitful | Any)
    assert_type(x * length[0], values.Unitful | Any)
    assert_type((length + length).to("km"), values.Unitful | Any)
    assert_type(length < length, Array | Any)
    assert_type((values.Masked(x, x > 0) - 1).mask, Array | Any)
    return 3.0 * length


# --- transform ------------------------------------------------------------------------------


def model(weight: ArrayLike, x: Array, *, times: int = 1) -> Array:
    return jnp.tanh(jnp.matmul(x, weight)) * times


@transform
def decorated(x: Array, y: float) -> tuple[Array, int]:
    return x * y, 2


def two_results(x: Array) -> tuple[Array, int]:
    return -x, 2


@functools.partial(transform, materialise="allow", rules=rules)
def with_options(x: Array) -> Array:
    return -x


class Layer:
    @transform
    def apply(self, x: Array) -> Array:
        return x + 1


def transformed(v: Scaled, x: Array) -> None:
    run = transform(model)
    # What fits the annotations has the result that the function declares.
    assert_type(run(x, x, times=2), Array)
    assert_type(decorated(x, 2.0), tuple[Array, int])
    assert_type(with_options(x), Array)
    assert_type(Layer().apply(x), Array)
    transform(run, lambda leaf: leaf is v, materialise="allow")(x, x)
    # Where values are among the arguments, the result may be one.
    result = run(v, x)
    assert_type(result, Array | Any)
    as_array: Array = result  # It goes where an array goes, and has what an array has.
    assert_type(as_array, Array)
    assert_type(result.shape, tuple[int, ...] | Any)
    if isinstance(result, Scaled):
        assert_type(result.name, str)
    negated, count = transform(two_results)(v)
    assert_type(count, int | Any)
    if isinstance(negated, Scaled):
        assert_type(negated.name, str)
    as_callable: Callable[[Array, Array], Array] = run
    assert_type(as_callable(x, x), Array)
    assert_type(run.__name__, str)
    jax.jit(run)(v, x)  # pyright: ignore
    assert_type(jaxrewrite.make_jaxpr(model)(v, x), ClosedJaxpr)


def mistakes_about_transform(x: Array) -> None:
    transform(model, materialise="forbidden")  # type: ignore
    transform(3)  # type: ignore
    text: str = decorated(x, 2.0)  # type: ignore
    print(text)


# --- functions of values --------------------------------------------------------------------


def functions(v: Scaled, x: Array) -> None:
    assert_type(jaxrewrite.materialise(v), Array)
    assert_type(jaxrewrite.materialise({"v": v}), Any)
    assert_type(jaxrewrite.stack([v, v]), Scaled | Batched)
    assert_type(jaxrewrite.same_structure(v, v), bool)
    assert_type(jaxrewrite.bind("neg", v), Any)
    with jaxrewrite.no_materialise():
        jaxrewrite.clear_caches()


def reports(v: Scaled, x: Array) -> None:
    report = jaxrewrite.explain(model)(v, x)
    assert_type(report, Report)
    assert_type(report.steps[0].primitive, str)
    assert_type(report.flops, tuple[float, float])
    assert_type(jaxrewrite.which("neg", v).decision, str)
    assert_type(jaxrewrite.rules(type=Scaled)[0].types, tuple[str, ...])
    assert_type(str(jaxrewrite.near_misses(model, rules=rules)(v, x)), str)
    assert_type(patterns.stable, Rules)
    assert_type(patterns.attention_rules("xla"), Rules)
    assert_type(primitives.UNARY, tuple[str, ...])
    assert_type(testing.assert_implicit(model, v, x), Report)


def numpy_functions(v: Scaled, x: Array) -> None:
    assert_type(rnp.sum(v, axis=0), Array | Any)
    named = values.Named(ones((2, 3)), ("batch", None))
    assert_type(rnp.sum(named, axis="batch"), Array | Any)
    assert_type(rnp.mean(named, axis=("batch", 1)), Array | Any)
    assert_type(rnp.take(named, 0, axis="batch"), Array | Any)
    assert_type(rnp.add(v, 1), Array | Any)
    assert_type(rnp.where(x > 0, v, x), Array | Any)
    assert_type(rnp.linalg.norm(v), Array | Any)
    assert_type(rnp.fft.fft(v).shape, tuple[int, ...] | Any)
    assert_type(rnp.pi, float)
    assert_type(jaxrewrite.numpy.concatenate([v, x]), Array | Any)
    assert_type(rnp.ones(3, rnp.float32), Array)  # pyright: ignore[reportUnknownMemberType]
    as_array: Array = rnp.matmul(x, v)
    assert_type(as_array, Array)
    assert_type(rnp.linalg.inv(v), Array | Any)
    assert_type(rnp.meshgrid(x[0], x[0]), list[Array | Any])


def mistakes_about_numpy(v: Scaled) -> None:
    rnp.sum()  # type: ignore
    rnp.sin(v, v)  # type: ignore
    rnp.linalg.solve(v)  # type: ignore
    jnp.sin(v)  # type: ignore


# --- ready types ----------------------------------------------------------------------------


def ready_types(x: Array) -> None:
    diagonal = values.Diagonal(x[0])
    assert_type(diagonal, values.Diagonal)
    assert_type(diagonal.d, Array)
    assert_type(diagonal @ x, Array | Any)
    lora = values.Lora(x, x, x, scale=2.0)
    assert_type(lora.scale, float)
    assert_type(values.Quantised.quantise(x, 4), values.Quantised)
    length = values.Unitful(x, "m")
    assert_type(length.units, values.Units)
    assert_type(length.to("km"), values.Unitful)
    values.register_unit("smoot", "m", 1.7018)
    assert_type(length.units / values.Units("s"), values.Units)
    assert_type(values.nbytes({"a": x}).dense, int)
    assert_type(values.nbytes(diagonal).implicit, int)
    trained, frozen = values.partition(lora, values.freeze(lora, {values.Lora: ["w"]}))
    assert_type(values.combine(trained, frozen), Any)
    params: Any = {"kernel": x, "bias": x[0]}
    params = values.quantise(params, lambda path, leaf: path == "kernel", progress=list)
    params = values.adapt(params, lambda path, leaf: path == "kernel", 1, jax.random.key(0))
    is_value: Callable[[Any], bool] = lambda leaf: isinstance(leaf, Value)
    assert_type(transform(lambda p: p["kernel"], is_value)(params), Any)  # pyright: ignore


def pytrees(params: dict[str, Array], mesh: Mesh) -> None:
    assert_type(jaxrewrite.place(params, mesh, []), dict[str, Array])
    assert_type(checkpoints.load("file", params), dict[str, Array])
    stored = checkpoints.to_storable(params)
    assert_type(checkpoints.from_storable(stored, params), dict[str, Array])


def main() -> None:
    v, x = the_type(), ones((3, 3))
    operators(v, x)
    transformed(v, x)
    functions(v, x)
    reports(v, x)
    numpy_functions(v, x)
    ready_types(x)
    operators_of_annotated_arrays(x)


if __name__ == "__main__":
    main()
