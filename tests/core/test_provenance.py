"""Rewritten equations still say where in the user's code they come from."""

import importlib
import io
import pathlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jaxtyping import ArrayLike

import jaxrewrite
from jaxrewrite import transform


class Doubled(jaxrewrite.ArrayValue):
    x: jax.Array

    def materialise(self):
        return self.x * 2


@jaxrewrite.register(lax.neg_p)
def _(v: Doubled):
    return Doubled(jnp.negative(v.x))


V = Doubled(jnp.arange(3.0))


def stacks(jaxpr):
    return [str(eqn.source_info.name_stack) for eqn in jaxpr.jaxpr.eqns]


def scoped(v):
    with jax.named_scope("layer0"):
        return -v


def test_name_scopes_survive():
    assert stacks(jaxrewrite.make_jaxpr(scoped)(V)) == ["layer0"]
    outer = jax.make_jaxpr(jax.named_call(transform(scoped), name="around"))(V)
    assert all("layer0" in stack for stack in stacks(outer))
    text = jax.jit(transform(scoped)).lower(V).as_text(debug_info=True)
    assert "layer0" in text


def test_name_scopes_in_a_rule_are_within_those_of_the_equation():
    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def _(v: Doubled):
        with jax.named_scope("rule"):
            return Doubled(jnp.negative(v.x))

    assert stacks(jaxrewrite.make_jaxpr(scoped, rules=rules)(V)) == ["layer0/rule"]


def test_name_scopes_around_a_transformed_function_stay():
    def around(v):
        with jax.named_scope("outer"):
            return transform(scoped)(v)

    assert stacks(jax.make_jaxpr(around)(V)) == ["outer/layer0"]


def test_source_lines_are_the_users():
    text = jax.jit(transform(scoped)).lower(V).as_text(debug_info=True)
    line = scoped.__code__.co_firstlineno + 2
    assert f'test_provenance.py":{line}' in text


def test_runtime_errors_name_the_line():
    def fails(v):
        return jnp.log(-v)

    with (
        jax.debug_nans(True),
        pytest.raises(FloatingPointError) as caught,
    ):
        transform(fails, materialise="allow")(Doubled(jnp.ones(3)))
    notes = "\n".join(caught.value.__notes__)
    assert f"test_provenance.py:{fails.__code__.co_firstlineno + 1}" in notes


def test_an_error_of_jax_has_the_users_line():
    def wrong(v):
        return jnp.reshape(v, (5, 5))

    with pytest.raises(TypeError, match="reshape") as raised:
        transform(lambda v: wrong(v))(V)
    line = wrong.__code__.co_firstlineno + 1
    assert f"{__file__}:{line} (wrong)" in "".join(raised.value.__notes__)


def test_an_error_names_a_value_that_a_function_within_closes_over():
    def adding(offset):
        return lambda x: jnp.sin(offset) + x

    add = adding(V)
    with pytest.raises(TypeError) as raised:
        transform(lambda x: add(x))(V.x)
    assert "closes over offset (Doubled)" in "".join(raised.value.__notes__)


def test_warning_points_at_the_users_line():
    def program(v):
        return jnp.sin(v)

    with pytest.warns(jaxrewrite.MaterialisationWarning) as caught:
        transform(program)(V)
    assert caught[0].filename == __file__
    assert caught[0].lineno == program.__code__.co_firstlineno + 1


@pytest.mark.parametrize("fn", [jnp.sin, jnp.sort])
def test_warning_points_at_the_caller_of_a_transformed_library_function(fn):
    with pytest.warns(jaxrewrite.MaterialisationWarning) as caught:
        transform(fn)(V)
    assert caught[0].filename == __file__


def test_one_warning_for_all_programs_with_the_line():
    cumsum = lambda v: jnp.cumsum(v)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for program in (cumsum, lambda v: cumsum(v), lambda v: 2 * cumsum(v)):
            transform(program)(V)
    assert len([w for w in caught if "'cumsum'" in str(w.message)]) == 1


def test_one_warning_a_primitive_type_and_line():
    def program(v):
        return [jnp.sin(v) for _ in range(3)], jnp.cos(v)

    with pytest.warns(jaxrewrite.MaterialisationWarning) as caught:
        transform(program)(V)
    assert len(caught) == 2


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (1, " In net/layer0."),
        (3, " In net/layer0, net/layer1, net/layer2."),
        (4, " In net/layer0, net/layer1, net/layer2, net/layer3."),
        (6, " In net/layer0, net/layer1, net/layer2, net/layer3 and 2 more."),
    ],
)
def test_a_warning_names_the_scopes_that_have_the_line(layers, text):
    """A layer of Flax is such a scope, and its line is one of Flax."""
    layer = jax.jit(lambda v: jnp.sin(v))

    def program(v):
        total = 0
        with jax.named_scope("net"):
            for i in range(layers):
                with jax.named_scope(f"layer{i}"):
                    total += layer(v) + layer(v)
        return total

    loop = lambda v: lax.fori_loop(0, 2, lambda i, x: x + program(v), jnp.zeros(3))
    for fn in (program, loop):
        with pytest.warns(jaxrewrite.MaterialisationWarning) as caught:
            jaxrewrite.make_jaxpr(fn)(V)
        (warned,) = caught
        assert str(warned.message).endswith(text)
        assert warned.message.remedy == "Register a rule"


def test_effects_keep_their_order(capfd):
    log = []

    def program(v):
        for i in range(3):
            io_callback(lambda x, i=i: log.append(i), None, v, ordered=True)
        jax.debug.print("seen {}", v[0])
        return -v

    fn = transform(program, materialise="allow")
    fn(V)
    jax.effects_barrier()
    jax.jit(fn)(V)
    jax.effects_barrier()
    assert log == [0, 1, 2] * 2
    assert capfd.readouterr().out.count("seen 0.0") == 2


def test_references():
    def program(v):
        ref = jax.new_ref(jnp.zeros(3))
        ref[...] = v + 1.0
        ref[0] = ref[1] * 2
        return ref[...]

    fn = transform(program, materialise="allow")
    want = program(V.materialise())
    np.testing.assert_allclose(fn(V), want)
    np.testing.assert_allclose(jax.jit(fn)(V), want)

    outside = jax.new_ref(jnp.zeros(3))

    def write(v, ref):
        ref[...] = v + ref[...]
        return -v

    transform(write, materialise="allow")(V, outside)
    np.testing.assert_allclose(outside[...], V.materialise())


def test_a_rule_for_arrays_may_write_into_one_of_its_own():
    rules = jaxrewrite.Rules()

    @rules.register("tanh")
    def _(x: ArrayLike, **params):
        ref = jax.new_ref(x)
        ref[...] += 1
        double(ref)
        return ref[...]

    @jax.jit
    def double(ref):
        jax.debug.callback(lambda: None)  # Effects that name no reference are there, too.
        ref[...] *= 2

    x = jnp.arange(3.0)
    np.testing.assert_array_equal(transform(jnp.tanh, rules=rules)(x), 2 * (x + 1))


def test_metadata_context_survives():
    from jax.experimental.xla_metadata import set_xla_metadata

    def program(v):
        with set_xla_metadata(marked="yes"):
            return -v

    (eqn,) = jaxrewrite.make_jaxpr(program)(V).jaxpr.eqns
    assert eqn.ctx.xla_metadata == {"marked": "yes"}
    assert "marked" in jax.jit(transform(program)).lower(V).as_text()
    np.testing.assert_allclose(transform(program)(V).x, -V.x)


def test_dead_equations_materialise_nothing():
    def program(v):
        jnp.sin(v)
        jax.jit(lambda a: (jnp.cos(a), a))(v)
        return -v

    out = transform(program, materialise="forbid")(V)
    assert isinstance(out, Doubled)


def test_disable_jit():
    with jax.disable_jit():
        out = transform(lambda v: jnp.sin(-v), materialise="allow")(V)
    np.testing.assert_allclose(out, jnp.sin(-V.materialise()), rtol=1e-6)


def test_identities_keep_any_value():
    from jax.ad_checkpoint import checkpoint_name

    for fn in (
        lambda a: checkpoint_name(a, "n"),
        lambda a: lax.optimization_barrier((a, jnp.ones(2)))[0],
        lax.stop_gradient,
        lambda a: jnp.array(a, copy=True),
    ):
        out = transform(fn, materialise="forbid")(V)
        assert isinstance(out, Doubled)
        np.testing.assert_allclose(out.x, V.x)
    stopped = transform(lambda a: (lax.stop_gradient(a) * 2.0).sum(), materialise="allow")
    np.testing.assert_allclose(jax.grad(stopped)(V).x, 0)


def test_profiles_show_no_frames_of_the_library():
    buffer = io.StringIO()
    print(jaxrewrite.make_jaxpr(scoped)(V).pretty_print(source_info=True), file=buffer)
    assert "test_provenance" in buffer.getvalue()
    assert "_rewrite.py" not in buffer.getvalue()


@pytest.mark.parametrize("folder", ["site-packages", "mine"])
def test_a_line_of_an_installed_package_is_named_by_the_line_that_calls_it(
    folder, tmp_path, monkeypatch
):
    package, name = tmp_path / folder, f"layers_in_{folder[:4]}"
    package.mkdir()
    (package / f"{name}.py").write_text(
        "import jax.numpy as jnp\n\n\ndef layer(x):\n    return jnp.sort(x)\n"
    )
    monkeypatch.syspath_prepend(package)
    layer = importlib.import_module(name).layer
    report = jaxrewrite.explain(lambda v: layer(v))(V)
    files = {pathlib.Path(step.file).name for step in report.steps}
    is_installed = folder == "site-packages"
    assert files == {pathlib.Path(__file__).name if is_installed else f"{name}.py"}
