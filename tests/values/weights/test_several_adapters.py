"""Adapters merged into their weights, and another one for each element of a batch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite import values
from jaxrewrite.values import Dora, Lora, choose_adapters, merge, stack_adapters


RNG = np.random.default_rng(0)


def numbers(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def model(p, x):
    return jnp.tanh(x @ p["first"] + p["bias"]) @ p["second"]


def quantised(n, m):
    codes = RNG.integers(-50, 50, (n, m)).astype(np.int8)
    return values.Quantised(
        jnp.asarray(codes), jnp.asarray(np.full((1, m), 0.02, np.float32))
    )


def of_adapter(p, x):
    """The dense model with one adapter, in double precision."""
    w = {}
    for name, v in p.items():
        base = v.w if isinstance(v, Lora) else v
        if isinstance(base, values.Quantised):
            base = np.float64(base.q) * np.float64(base.scale)
        w[name] = np.float64(base)
        if isinstance(v, Lora):
            w[name] = w[name] + np.float64(v.a) @ np.float64(v.b) * v.scale
    return np.tanh(x @ w["first"] + w["bias"]) @ w["second"]


def trees():
    """The model as it is, and with adapters of other ranks, scales and places."""
    base = {
        "first": quantised(4, 6),
        "bias": numbers(6),
        "second": jnp.asarray(numbers(6, 3)),
    }
    lora = lambda w, rank, scale: Lora(
        w, numbers(w.shape[0], rank), numbers(rank, w.shape[1]), scale
    )
    one = {**base, "first": lora(base["first"], 2, 0.5)}
    two = {
        **base,
        "first": lora(base["first"], 1, 2.0),
        "second": lora(base["second"], 1, 0.5),
    }
    return [base, one, two]


def test_each_element_of_a_batch_has_an_adapter_of_its_own():
    those, x, index = trees(), numbers(5, 4), np.array([2, 0, 1, 2, 0])
    stacked = stack_adapters(those)
    assert stacked["first"].w is those[0]["first"] and stacked["bias"] is those[0]["bias"]
    assert stack_adapters(those[1:2])["first"].a.shape == (1, 4, 2)

    @jax.jit
    def run(stacked, index, x):
        chosen, axes = choose_adapters(stacked, index)
        each = jaxrewrite.transform(model, materialise="forbid")
        return jax.vmap(each, in_axes=(axes, 0))(chosen, x)

    want = np.stack([of_adapter(those[i], x[k]) for k, i in enumerate(index)])
    np.testing.assert_allclose(run(stacked, index, x), want, rtol=1e-4, atol=1e-5)
    # One program serves other requests.
    other = np.array([1, 1, 1, 0, 2])
    want = np.stack([of_adapter(those[i], x[k]) for k, i in enumerate(other)])
    np.testing.assert_allclose(run(stacked, other, x), want, rtol=1e-4, atol=1e-5)
    assert run._cache_size() == 1


def test_the_shared_weight_is_not_repeated():
    """The largest array of the program is the weight itself, and one product is with it."""
    w = jnp.zeros((30, 40))
    those = [{"w": Lora(w, numbers(30, 1), numbers(1, 40), scale)} for scale in (1.0, 2.0)]

    def run(stacked, x):
        chosen, axes = choose_adapters(stacked, jnp.zeros(20, jnp.int32))
        return jax.vmap(jaxrewrite.transform(lambda p, x: x @ p["w"]), (axes, 0))(chosen, x)

    jaxpr = jax.make_jaxpr(run)(stack_adapters(those), jnp.zeros((20, 30)))
    sizes = [v.aval.size for eqn in jaxpr.jaxpr.eqns for v in eqn.outvars]
    assert max(sizes) <= w.size


@pytest.mark.slow
def test_a_scan_over_layers_with_several_adapters():
    """The layers' own axis stays behind that of the batch."""
    w = jnp.asarray(numbers(3, 4, 4))
    loras = [
        Lora(w, numbers(3, 4, r), numbers(3, r, 4), s) for r, s in ((1, 0.5), (2, 2.0))
    ]
    those, index, x = [loras[0], w, loras[1]], np.array([2, 0, 1, 2]), numbers(4, 4)

    def deep(w, x):
        return jax.lax.scan(lambda c, v: (jnp.tanh(c @ v), None), x, w)[0]

    chosen, axes = choose_adapters(stack_adapters(those), index)
    each = jaxrewrite.transform(deep, materialise="forbid")
    got = jax.vmap(each, in_axes=(axes, 0))(chosen, x)
    for row, i, y in zip(x, index, got, strict=True):
        v = those[i]
        dense = np.float64(w) + (v.a @ v.b * v.scale if isinstance(v, Lora) else 0)
        for layer in dense:
            row = np.tanh(row @ layer)
        np.testing.assert_allclose(y, row, rtol=1e-4, atol=1e-5)


def test_adapters_of_layers_have_a_common_rank():
    w = jnp.asarray(numbers(3, 4, 5))
    loras = [Lora(w, numbers(3, 4, rank), numbers(3, rank, 5)) for rank in (1, 2)]
    stack = stack_adapters(loras)
    assert stack.a.shape == (2, 3, 4, 2) and stack.b.shape == (2, 3, 2, 5)
    assert not stack.b[0, :, 1].any() and (stack.b[0, :, 0] == loras[0].b[:, 0]).all()


@pytest.mark.slow
def test_merged_adapters_are_dense():
    base, one, two = trees()
    merged = merge(two)
    for name in ("first", "second"):
        assert isinstance(merged[name], jax.Array)
    assert merged["bias"] is two["bias"] and merge(one)["second"] is base["second"]
    x = numbers(2, 4)
    np.testing.assert_allclose(
        of_adapter(merged, x), of_adapter(two, x), rtol=1e-4, atol=1e-5
    )


def test_pytrees_that_share_no_weights_are_refused():
    base, one, _ = trees()
    copied = {**base, "bias": np.array(base["bias"])}
    turned = {
        **base,
        "first": Lora(base["first"], numbers(6, 1), numbers(1, 4), 1.0, [1], [0]),
    }
    first = one["first"]
    coarser = values.Quantised(first.w.q, 2 * first.w.scale)
    rescaled = {**base, "first": Lora(coarser, first.a, first.b)}
    dropped = values.dropout(one, 0.5, jax.random.key(0))
    trained = {**one, "first": dataclasses.replace(first, frozen=False)}
    for those, told in [
        ([one, trained], "first has frozen=True in some pytrees, frozen=False in others"),
        ([one, copied], "different arrays at bias"),
        ([one, rescaled], "different arrays at first"),
        ([one, {"first": base["first"]}], "different paths"),
        ([one, turned], "adapters of first have different axes"),
        ([one, dropped], "adapter of first has a Dropped in it"),
        ([], "a list of pytrees; got an empty list"),
        (base, "a list of pytrees; got a dict"),
    ]:
        with pytest.raises(ValueError, match=f"stack_adapters: .*{told}"):
            stack_adapters(those)


def test_lengths_of_columns_are_chosen_with_the_factors():
    """Also of a weight that is bare in some pytrees, whose columns have their own lengths."""
    w, x, index = quantised(4, 6), numbers(4, 4), np.array([2, 0, 1, 2])
    of = lambda rank, scale: Dora(
        w, numbers(4, rank), numbers(rank, 6), 1 + abs(numbers(1, 6)), scale
    )
    bare, one, two = {"w": w}, {"w": of(2, 0.5)}, {"w": of(1, 2.0)}
    stacked = stack_adapters([bare, one, two])
    assert stacked["w"].w is w and stacked["w"].magnitude.shape == (3, 1, 6)
    chosen, axes = choose_adapters(stacked, index)
    run = jaxrewrite.transform(lambda p, x: x @ p["w"], materialise="forbid")
    got = jax.jit(jax.vmap(run, in_axes=(axes, 0)))(chosen, x)
    dense = [np.asarray(jaxrewrite.materialise(p["w"])) for p in (bare, one, two)]
    want = [row @ dense[i] for row, i in zip(x, index, strict=True)]
    np.testing.assert_allclose(got, want, 1e-4, 1e-4)
    lora = {"w": Lora(w, numbers(4, 1), numbers(1, 6))}
    with pytest.raises(ValueError, match="w is a Lora in some pytrees, a Dora in others"):
        stack_adapters([one, lora])
