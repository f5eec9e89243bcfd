"""Programs on typed keys of random numbers."""

from .conditions import some_axes
from .programs import op


def is_key(v):
    return v.kind == "?"


@op("key", 6, safe=True)
def one_key(b):
    k = b.pick(is_key, lambda v: v.ndim == 0).text
    return b.s.choice(
        [
            f"jax.random.split({k})",
            f"jax.random.split({k}, (2, 3))",
            f"jax.random.fold_in({k}, 7)",
            f"jax.random.uniform({k}, (3,))",
            f"jax.random.normal({k}, (2, 2))",
            f"jax.random.bits({k}, (3,))",
            f"jax.random.randint({k}, (3,), 0, 9)",
            f"jax.random.bernoulli({k}, 0.5, (3,))",
            f"jax.random.permutation({k}, 4)",
            f"jax.random.choice({k}, 5, (2,))",
            f"jax.random.categorical({k}, jnp.zeros(4))",
            f"jax.random.truncated_normal({k}, -1.0, 1.0, (2,))",
            f"jax.random.key_data({k})",
            f"jax.random.clone({k})",
            f"{k}[None]",
            f"jnp.stack([{k}, {k}])",
            f"jnp.broadcast_to({k}, (2, 2))",
            f"lax.cond(jnp.arange(2)[1] > 0, lambda a: a, lambda a: jax.random.fold_in(a, 1), {k})",
            f"lax.cond(jax.random.uniform({k}) > 0.5, lambda: {k}, lambda: jax.random.key(1))",
            f"lax.scan(lambda c, _: tuple(jax.random.split(c)), {k}, None, length=3)",
            f"lax.scan(lambda c, i: (c, jax.random.fold_in(c, i)), {k}, jnp.arange(2))[1]",
            f"lax.fori_loop(0, 3, lambda i, c: jax.random.fold_in(c, i), {k})",
            f"lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, jax.random.split(c[1])[0]), (0, {k}))",
            f"jax.jit(lambda a: (jax.random.uniform(a), a))({k})",
            f"jax.vmap(lambda i: jax.random.fold_in({k}, i))(jnp.arange(3))",
            f"jax.checkpoint(lambda a: jax.random.normal(a, (2,)))({k})",
            f"jnp.where(jnp.bool_(False), {k}, jax.random.key(3))",
            f"jax.grad(lambda x: (x * jax.random.normal({k}, (3,))).sum())(jnp.ones(3))",
            f"{k}.reshape(1, 1)",
        ]
    )


@op("key", 6, safe=True)
def many_keys(b):
    v = b.pick(is_key, some_axes)
    k, n = v.text, v.shape[0]
    axis = b.s.random.randrange(v.ndim)
    return b.s.choice(
        [
            f"{k}[0]",
            f"{k}[1:]",
            f"{k}[::-1]",
            f"{k}[idx({b.s.seed()}, {n}, 3)]",
            f"{k}.T",
            f"{k}.reshape(-1)",
            f"{k}[:, None]",
            f"jnp.concatenate([{k}, {k}], axis={axis})",
            f"jnp.stack([{k}, {k}], axis={axis})",
            f"jnp.roll({k}, 1, axis={axis})",
            f"jnp.expand_dims({k}, {axis})",
            f"jnp.repeat({k}, 2, axis={axis})",
            f"jnp.split({k}, [1], axis={axis})",
            f"jnp.broadcast_to({k}, {(2, *v.shape)})",
            f"jnp.where(jnp.arange({v.shape[-1]}) < 1, {k}, {k}[::-1])",
            f"{k} == {k}[::-1]",
            f"{k}.at[0].set({k}[-1])",
            f"jnp.take({k}, jnp.array([0, 0]), axis={axis}, mode='clip')",
            f"lax.dynamic_index_in_dim({k}, jnp.int32(1), {axis})",
            f"jax.vmap(lambda a: a)({k})",
            f"jax.vmap(jax.random.split, out_axes=-1)({k})" if v.ndim == 1 else f"{k}.mT",
            f"jax.vmap(jax.random.uniform)({k})" if v.ndim == 1 else f"{k}.ravel()",
            f"lax.map(lambda a: a, {k})",
            f"lax.scan(lambda c, a: (c + 1, a), 0, {k})",
            f"lax.scan(lambda c, a: (a, c), {k}[0], {k})",
            f"lax.fori_loop(0, 2, lambda i, c: c[::-1], {k})",
            f"lax.cond(jnp.arange(2)[1] > 0, lambda a: a, lambda a: a[::-1], {k})",
            f"jax.random.key_data({k})",
            f"jax.random.uniform({k}.ravel()[0], (2,))",
            f"jnp.squeeze({k}[:1], 0)",
        ]
    )
