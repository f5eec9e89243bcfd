"""Attention as libraries write it, and the function of JAX that may be fused.

The patterns look for softmax(q kᵀ · scale + bias, masked) v, in the layouts and with the order
of operations that libraries trace to. They replace it by `jax.nn.dot_product_attention`,
which computes the logits and the softmax in float32. So operands of float32 and bfloat16
match, and operands of float64 do not; nor do operands of float16, whose product of this
function no CPU has.

A scale that multiplies the queries stays where it is, outside of the pattern.
"""

# The annotations of these rules are made for each layout, which mypy does not follow.
# mypy: disable-error-code="valid-type, index, type-arg, name-defined, attr-defined"

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import AbstractDtype, Array, Bool, Float, Shaped

from .._patterns.rules import Rules
from ._stable import widened


class Narrow(AbstractDtype):
    """The dtypes for which `jax.nn.dot_product_attention` is exact, and always there."""

    dtypes = ("float32", "bfloat16")


# --- what takes its place ---------------------------------------------------------------


def _heads_last(x: Any) -> Any:
    """An array of (..., heads, length, size) with the axis of heads where JAX has it."""
    return jnp.swapaxes(x, -2, -3) if x.ndim > 3 else jnp.expand_dims(x, -2)


def _four_axes(x: Any, batch: tuple[int, ...]) -> Any:
    """A bias or mask of (batch, heads, queries, keys), from one that is broadcast to it."""
    x = x.reshape((1,) * (len(batch) + 3 - x.ndim) + x.shape)
    lead, rest = x.shape[: len(batch)], x.shape[len(batch) :]
    if any(size != 1 for size in lead):
        x, lead = jnp.broadcast_to(x, batch + rest), batch
    return x.reshape(math.prod(lead), *rest)


def _nan_where_nothing_is_seen(out: Any, mask: Any, bias: Any) -> Any:
    """What a softmax of nothing but -inf gives, and its derivative.

    A mask makes -inf of a logit, and so may a bias of the logits that the mask leaves.
    """
    seen = mask if bias is None else mask & (bias != -math.inf)
    blind = jnp.swapaxes(~jnp.any(seen, axis=-1), -1, -2)
    return out * jnp.where(blind, jnp.nan, 1.0).astype(out.dtype)[..., None]


def _is_exact(q: Any, k: Any, v: Any, fill: float) -> bool:
    """Whether the function of JAX means the same.

    It wants one dtype. What masked logits are filled with has to be so low that nothing is
    left of it beside any other logit.
    """
    return q.dtype == k.dtype == v.dtype and fill <= -1e9


def _has_program(q: Any, k: Any) -> bool:
    """Whether each platform compiles the product of these queries and keys.

    The function of JAX divides by the number of heads, which may be none. In bfloat16 it asks
    for sums in float32. XLA for a CPU has no code for that with JAX 0.10 where at most one
    axis of the product is longer than 1.
    """
    if 0 in (q.size, k.size):
        return False
    size = q.shape[-1]
    vectors = sum(n == 1 for n in (q.size // size, k.size // size, size))
    return q.dtype != jnp.bfloat16 or vectors < 2


def _is_fusable(q: Any, bias: Any, mask: Any) -> bool:
    """Whether cuDNN takes operands of these dtypes and sizes. It broadcasts no lengths."""
    length = math.gcd(
        *(x.shape[a] for x in (bias, mask) if x is not None for a in (-2, -1))
    )
    return (
        q.dtype != jnp.float32
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 128
        and length % 2 == 0
    )


def _as_one_call(attend: Callable[..., Any]) -> Callable[..., Any]:
    """A jitted function in place of one, so that all layers of a model share its body.

    It declines where the function of JAX means something else.
    """

    @functools.partial(jax.jit, static_argnames="fill")
    def dot_product_attention(q, k, v, *, fill, **logits):
        return attend(q, k, v, fill=fill, **logits)

    def call(q: Any, k: Any, v: Any, fill: float = -math.inf, **logits: Any) -> Any:
        if not _is_exact(q, k, v, fill) or not _has_program(q, k):
            return NotImplemented
        return dot_product_attention(q, k, v, fill=fill, **logits)

    return call


class _Fused:
    """`jax.nn.dot_product_attention` for operands of the layouts of libraries.

    ``heads_first`` takes operands of (..., heads, length, size), and ``heads_last`` operands
    of (..., length, heads, size).
    """

    def __init__(self, implementation: Any):
        self.implementation = implementation
        self.heads_first = _as_one_call(self._heads_first)
        self.heads_last = _as_one_call(self._heads_last)

    def _heads_first(self, q: Any, k: Any, v: Any, **logits: Any) -> Any:
        if q.ndim < 4:
            for name in logits.keys() & {"bias", "mask"}:
                logits[name] = jnp.expand_dims(jnp.atleast_2d(logits[name]), -3)
        out = self._heads_last(*map(_heads_last, (q, k, v)), **logits)
        return jnp.swapaxes(out, -2, -3) if q.ndim > 3 else jnp.squeeze(out, -2)

    def _heads_last(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        bias: Any = None,
        mask: Any = None,
        fill: float,
        scale: Any = 1.0,
    ) -> Any:
        batch, shape = q.shape[:-3], q.shape
        q, k, v = (x.reshape(math.prod(batch), *x.shape[-3:]) for x in (q, k, v))
        if bias is not None:
            bias = _four_axes(bias, batch)
        if mask is not None:
            mask = _four_axes(mask, batch)
        out = self._of_four_axes(q, k, v, bias, mask, scale)
        if mask is not None and fill == -math.inf:
            out = _nan_where_nothing_is_seen(out, mask, bias)
        return out.reshape(shape)

    def of_jax(self, q: Any, k: Any, v: Any, *logits: Any, **kwargs: Any) -> Any:
        """The function of JAX itself."""
        bias, mask = logits
        if not _is_exact(q, k, v, -math.inf):
            return NotImplemented
        kwargs["implementation"] = self._choice(q, bias, mask)
        return jax.nn.dot_product_attention(q, k, v, bias, mask, **kwargs)

    def _of_four_axes(
        self, q: Any, k: Any, v: Any, bias: Any, mask: Any, scale: Any
    ) -> Any:
        choice = self._choice(q, bias, mask)
        if choice == "cudnn":  # It takes no scale that is computed.
            q, scale = (q * scale).astype(q.dtype), 1.0
        return jax.nn.dot_product_attention(
            q, k, v, bias, mask, scale=scale, implementation=choice
        )

    def _choice(self, q, bias, mask):
        if self.implementation == "cudnn" and not _is_fusable(q, bias, mask):
            return None
        return self.implementation


# --- what is looked for -----------------------------------------------------------------


def _end(output: Callable[..., Any], w: Any, v: Any, upcast: bool) -> Any:
    """The softmax of logits, and its product with the values."""
    w = w.astype(jnp.float32) if upcast else w
    return output(jax.nn.softmax(w).astype(v.dtype), v)


def _refuse(q: Any, k: Any, v: Any, upcast: bool, *logits: Any) -> None:
    """Raise at operands that the function of JAX does not take, before a trace costs more."""
    if not q.dtype == k.dtype == v.dtype or (upcast and q.dtype == jnp.float32):
        raise TypeError("Queries, keys and values have one dtype, which may be widened.")
    if not q.ndim == k.ndim == v.ndim or any(x.ndim > q.ndim for x in logits):
        raise TypeError("Queries, keys and values have one rank, and logits no higher one.")


class _Layout(NamedTuple):
    """How a library orders axes, by the annotations of queries and keys and two products.

    ``attend`` is what takes the place of it all.
    """

    query: Any
    key: Any
    weights: Callable[..., Any]
    output: Callable[..., Any]
    attend: Callable[..., Any]


def _layouts(fused: _Fused) -> Iterator[_Layout]:
    query, key = (Narrow[Array, f"*batch {n} heads size"] for n in ("t", "s"))
    # Flax linen, Hugging Face, Haiku; `flax.nnx` with a dropout that is not in force.
    yield _Layout(
        *(query, key),
        lambda q, k: jnp.einsum("...qhd,...khd->...hqk", q, k),
        lambda w, v: jnp.einsum("...hqk,...khd->...qhd", w, v),
        fused.heads_last,
    )
    query, key = (Narrow[Array, f"*batch {n} size"] for n in ("t", "s"))
    # Textbooks, with `jax.numpy.einsum` and with ``@``.
    yield _Layout(
        *(query, key),
        lambda q, k: jnp.einsum("...qd,...kd->...qk", q, k),
        lambda w, v: jnp.einsum("...qk,...kd->...qd", w, v),
        fused.heads_first,
    )
    yield _Layout(
        *(query, key),
        lambda q, k: q @ jnp.swapaxes(k, -1, -2),
        lambda w, v: w @ v,
        fused.heads_first,
    )


# An array that is added to the logits, and an array that hides some of them.
_Bias = Float[Array, "..."]
_Mask = Bool[Array, "..."]
_Scale = Float[Array, ""]


def _register_layout(
    rules: Rules, layout: _Layout, scaling: str | None, has_bias: bool, has_mask: bool
) -> None:
    """Register the pattern of one layout with logits that are scaled, biased and masked so.

    ``scaling`` is ``"times"`` or ``"over"`` a scale, or ``None``.
    """
    Query, Key, weights, output, attend = layout
    types = {"q": Query, "k": Key, "v": Key}
    types |= {"scale": _Scale} if scaling else {}
    types |= {"bias": _Bias} if has_bias else {}
    types |= {"mask": _Mask, "fill": float} if has_mask else {}
    names = list(types)[3:]

    def before(q, k, v, *more, upcast):
        of = dict(zip(names, more, strict=True))
        _refuse(q, k, v, upcast, *(of[name] for name in ("bias", "mask") if name in of))
        w = weights(q, k)
        logits = w
        if scaling:
            logits = w / of["scale"] if scaling == "over" else w * of["scale"]
        if has_bias:
            logits = logits + of["bias"]
        if has_mask:
            logits = jnp.where(of["mask"], logits, of["fill"])
        if logits.shape != w.shape:
            raise TypeError("A bias and a mask have no more queries, keys or heads.")
        return _end(output, logits, v, upcast)

    def attention(q, k, v, *more, upcast):
        of = dict(zip(names, more, strict=True))
        if scaling == "over":
            of["scale"] = 1 / widened(of["scale"])
        return attend(q, k, v, **of)

    parts = {
        "scaled": scaling,
        "biased": has_bias,
        "and": has_bias and has_mask,
        "masked": has_mask,
    }
    name = "_".join(["attention", *(part for part, is_there in parts.items() if is_there)])
    attention.__name__ = attention.__qualname__ = name
    parameters = [
        *(
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in types
        ),
        inspect.Parameter("upcast", inspect.Parameter.KEYWORD_ONLY),
    ]
    attention.__annotations__, before.__annotations__ = types, {"upcast": bool}
    for fn in (before, attention):
        vars(fn)["__signature__"] = inspect.Signature(parameters)
    rules.rewrite(before)(attention)


def _register_equinox(rules: Rules, fused: _Fused) -> None:
    """Register the patterns of Equinox, which maps one head's attention over the heads."""
    Query, Key = (Narrow[Array, f"{n} heads size"] for n in ("t", "s"))
    weights = functools.partial(jnp.einsum, "sd,Sd->sS")
    output = functools.partial(jnp.einsum, "sS,Sd->sd")

    def plain(q, k, v, *, upcast: bool):
        def head(q: Any, k: Any, v: Any) -> Any:
            return _end(output, weights(q, k), v, upcast)

        _refuse(q, k, v, upcast)
        return jax.vmap(head, in_axes=1, out_axes=1)(q, k, v)

    @rules.rewrite(plain)
    def attention_by_heads(q: Query, k: Key, v: Key, *, upcast):
        return fused.heads_last(q, k, v)

    def masked(q, k, v, mask, fill, *, upcast: bool):
        def head(q: Any, k: Any, v: Any, mask: Any) -> Any:
            return _end(output, jnp.where(mask, weights(q, k), fill), v, upcast)

        _refuse(q, k, v, upcast, mask)
        of_mask = 0 if mask.ndim == 3 else None
        return jax.vmap(head, in_axes=(1, 1, 1, of_mask), out_axes=1)(q, k, v, mask)

    @rules.rewrite(masked)
    def attention_by_heads_masked(
        q: Query, k: Key, v: Key, mask: _Mask, fill: float, *, upcast
    ):
        return fused.heads_last(q, k, v, mask=mask, fill=fill)


def _register_bert(rules: Rules, layout: _Layout) -> None:
    """Register the pattern of Hugging Face BERT, which weights its heads.

    The weights are integers unless they are given.
    """
    Query, Key, weights, output, attend = layout

    def weighted(q, k, v, bias, heads):
        _refuse(q, k, v, False, bias)
        if jnp.result_type(v.dtype, heads.dtype) != v.dtype:
            raise TypeError("The weights of heads do not widen the result.")
        w = jax.nn.softmax(weights(q, k) + bias).astype(v.dtype)
        return output(jnp.einsum("...hqk,h->...hqk", w, heads), v)

    @rules.rewrite(weighted)
    def attention_weighted(
        q: Query, k: Key, v: Key, bias: _Bias, heads: Shaped[Array, "heads"]
    ):
        out = attend(q, k, v, bias=bias)
        return out if out is NotImplemented else (out * heads[:, None]).astype(v.dtype)


def _register_jax(rules: Rules, fused: _Fused) -> None:
    """Register the function of JAX itself, which `flax.nnx` calls."""
    Query, Key = Narrow[Array, "batch t heads size"], Narrow[Array, "batch s groups size"]
    Of, Hides = Float[Array, "#batch #heads #t #s"], Bool[Array, "#batch #heads #t #s"]
    attention = functools.partial(jax.nn.dot_product_attention, implementation="xla")

    def plain(q, k, v, scale, *, is_causal: bool):
        return attention(q, k, v, scale=scale, is_causal=is_causal)

    @rules.rewrite(plain)
    def attention_of_jax(q: Query, k: Key, v: Key, scale: float, *, is_causal):
        return fused.of_jax(q, k, v, None, None, scale=scale, is_causal=is_causal)

    def biased(q, k, v, bias, scale, *, is_causal: bool):
        return attention(q, k, v, bias, scale=scale, is_causal=is_causal)

    @rules.rewrite(biased)
    def attention_of_jax_biased(
        q: Query, k: Key, v: Key, bias: Of, scale: float, *, is_causal
    ):
        return fused.of_jax(q, k, v, bias, None, scale=scale, is_causal=is_causal)

    def masked(q, k, v, mask, scale, *, is_causal: bool):
        return attention(q, k, v, mask=mask, scale=scale, is_causal=is_causal)

    @rules.rewrite(masked)
    def attention_of_jax_masked(
        q: Query, k: Key, v: Key, mask: Hides, scale: float, *, is_causal
    ):
        return fused.of_jax(q, k, v, None, mask, scale=scale, is_causal=is_causal)

    def both(q, k, v, bias, mask, scale, *, is_causal: bool):
        return attention(q, k, v, bias, mask, scale=scale, is_causal=is_causal)

    @rules.rewrite(both)
    def attention_of_jax_biased_and_masked(
        q: Query, k: Key, v: Key, bias: Of, mask: Hides, scale: float, *, is_causal
    ):
        return fused.of_jax(q, k, v, bias, mask, scale=scale, is_causal=is_causal)


def attention_rules(implementation: str | None = None) -> Rules:
    """The table of attention, for an implementation of `jax.nn.dot_product_attention`.

    JAX's own choice (``None``) is the only one that has derivatives in forward mode. Where
    cuDNN takes operands of these dtypes and shapes, ``"cudnn"`` is used if asked for.
    """
    rules = Rules()
    fused = _Fused(implementation)
    linen, *others = _layouts(fused)
    logits = itertools.product((None, "times", "over"), (False, True), (False, True))
    for layout, form in itertools.product((linen, *others), [*logits]):
        _register_layout(rules, layout, *form)
    _register_bert(rules, linen)
    _register_equinox(rules, fused)
    _register_jax(rules, fused)
    return rules


rules = attention_rules()
