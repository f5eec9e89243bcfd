"""Programs as data, for random ones: operations and blocks, nested in each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Union

import jax
import jax.numpy as jnp
from jax import lax


Function = Callable[[Any, Any], Any]

# An operation on two earlier results, of which the first is the last: the name of the
# operation, or the name of a block and the steps inside of it.
Operation = Union[str, "tuple[str, Sequence[Step]]"]
Step = tuple[Operation, int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A program on square matrices of one shape, (n, n), whose result is one more of them.

    Each of its steps is ``(what, i, j)``: an operation of `OPERATIONS`, or a block of
    `BLOCKS` with the steps inside of it, on the ``i``-th and the ``j``-th array from the
    end of those known so far. Indices go round. The ``repr`` of a program makes it again.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.testing.strategies import Program
    >>> program = Program((("add", 0, 1), (("jit", (("neg", 0, 0),)), 0, 0)))
    >>> program(jnp.ones((2, 2)), jnp.ones((2, 2)))
    Array([[-2., -2.],
           [-2., -2.]], dtype=float32)
    """

    steps: Sequence[Step]

    def __call__(self, *arrays: Any) -> Any:
        known = list(arrays)
        for what, i, j in self.steps:
            fn = OPERATIONS[what] if isinstance(what, str) else _block(*what)
            known.append(fn(known[-1 - i % len(known)], known[-1 - j % len(known)]))
        return known[-1]


def _block(name: str, steps: Sequence[Step]) -> Function:
    program = Program(steps)
    return BLOCKS[name](lambda x, y: program(x, y))


OPERATIONS: dict[str, Function] = {
    # elementwise
    "neg": lambda x, y: -x,
    "sin": lambda x, y: jnp.sin(x),
    "tanh": lambda x, y: jnp.tanh(x),
    "halve": lambda x, y: 0.5 * x,
    "select": lambda x, y: jnp.where(x > 0.1, x, 0.5 * y),
    "stop gradient": lambda x, y: lax.stop_gradient(x) * y,
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: 0.5 * (x * y),
    "subtract": lambda x, y: x - y,
    "maximum": lambda x, y: jnp.maximum(x, y),
    # linear
    "transpose": lambda x, y: x.T,
    "matmul": lambda x, y: 0.3 * (x @ y),
    "einsum": lambda x, y: 0.3 * jnp.einsum("ij,kj->ki", x, y),
    "reshape": lambda x, y: x.reshape(-1).reshape(x.shape),
    # reductions
    "add sums": lambda x, y: 0.3 * x.sum(axis=0, keepdims=True) + y,
    "softmax": lambda x, y: jax.nn.softmax(x),
    "cumulate": lambda x, y: 0.3 * jnp.cumsum(x, axis=1),
    # indexing
    "reverse": lambda x, y: x[::-1],
    "roll": lambda x, y: jnp.roll(x, 1, axis=0),
    "take": lambda x, y: x[jnp.arange(len(x)) ** 2 % len(x)],
    "slice": lambda x, y: lax.dynamic_slice(jnp.concatenate([x, y]), (1, 0), x.shape),
    "update": lambda x, y: x.at[-1].set(y[0]),
    # custom rules of JAX
    "silu": lambda x, y: jax.nn.silu(x),
    "logaddexp": lambda x, y: jnp.logaddexp(x, y),
}


def _custom_jvp(fn: Function) -> Function:
    """A rule twice the derivative."""
    wrapped = jax.custom_jvp(fn)

    @wrapped.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        out, tangent = jax.jvp(fn, primals, tangents)
        return out, 2 * tangent

    return wrapped


def _custom_vjp(fn: Function) -> Function:
    """A rule three times the derivative for the one, once for the other."""
    wrapped = jax.custom_vjp(fn)

    def backward(back: Any, ct: Any) -> Any:
        x, y = back(ct)
        return 3 * x, y

    wrapped.defvjp(lambda x, y: jax.vjp(fn, x, y), backward)
    return wrapped


def _while_loop(fn: Function) -> Function:
    """Has no reverse mode, so nothing flows back through it."""

    def looped(x: Any, y: Any) -> Any:
        turn = lambda c: (c[0] + 1, 0.5 * fn(c[1], y), c[1])
        start = (0, lax.stop_gradient(x), lax.stop_gradient(y))
        y = lax.stop_gradient(y)
        return lax.stop_gradient(lax.while_loop(lambda c: c[0] < 2, turn, start)[1]) + x

    return looped


def _scan(fn: Function) -> Function:
    return lambda x, y: lax.scan(lambda c, _: (fn(c, y), c), x, None, length=2)[0]


def _scan_of_two(fn: Function) -> Function:
    turn = lambda y: lambda c, _: ((c[1], fn(c[0], y)), None)
    return lambda x, y: lax.scan(turn(y), (x, y), None, length=3)[0][0]


def _scan_over_rows(fn: Function) -> Function:
    rows = lambda x, y: lax.scan(lambda c, row: (c + row, 0.5 * c), x[0], y)[1]
    return lambda x, y: fn(x, rows(x, y))


BLOCKS: dict[str, Callable[[Function], Function]] = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "cond": lambda f: lambda x, y: lax.cond(x[0, 0] > 0.2, f, lambda x, y: f(y, x), x, y),
    "cond of one": lambda f: lambda x, y: lax.cond(y[0, 0] > 0.2, f, lambda x, y: x, x, y),
    "scan carry": _scan,
    "scan two carries": _scan_of_two,
    "scan ys": lambda f: (
        lambda x, y: lax.scan(lambda c, _: (c, f(c, y)), x, None, length=2)[1][1]
    ),
    "scan rows": _scan_over_rows,
    "fori": lambda f: lambda x, y: lax.fori_loop(0, 2, lambda i, c: f(c, y), x),
    "while": _while_loop,
    "map": lambda f: lambda x, y: lax.map(lambda z: f(z, y), jnp.stack([x, -x]))[1],
    "vmap": lambda f: lambda x, y: jax.vmap(f, (None, 0))(x, jnp.stack([y, -y]))[1],
    "custom_jvp": _custom_jvp,
    "custom_vjp": _custom_vjp,
}
