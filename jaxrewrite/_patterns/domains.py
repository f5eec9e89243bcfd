"""The unknown static parameters of a pattern, each with a finite domain."""

from __future__ import annotations

import inspect
import itertools
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple


class Axis:
    """The annotation of an axis, or of axes, that a pattern does not know beforehand.

    A keyword-only parameter of the function that `jaxrewrite.rewrite` looks for, annotated
    so, stands for any axis of an operand, or any several of them. The decorated function
    gets the ones that matched in canonical form: a number that is not negative, or a tuple
    of two or more in increasing order, and ``None`` for an operand without axes.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> rules = jaxrewrite.Rules()
    >>> def naive(x, *, axis: jaxrewrite.Axis):
    ...     return jnp.log(jnp.sum(jnp.exp(x), axis=axis))
    >>> @rules.rewrite(naive)
    ... def _(x, *, axis):
    ...     return jax.nn.logsumexp(x, axis=axis)
    >>> jaxrewrite.transform(lambda x: jnp.log(jnp.exp(x).sum(0)), rules=rules)(
    ...     jnp.array([999.0, 999.0])
    ... )
    Array(999.69..., dtype=float32)
    """


# An operand of more axes has too many sets of axes to try all.
_MANY_AXES = 6

# A pattern with more combinations of static parameters is refused.
_MANY_COMBINATIONS = 256


# A key of a combination of static parameters.
Choice = tuple[str, ...]


class Statics(NamedTuple):
    """The static parameters of a pattern: a name and a domain for each."""

    domains: tuple[tuple[str, Any], ...]

    def combinations(self, rank: int) -> Iterator[dict[str, Any]]:
        """All combinations, in the order of the domains, for operands of at most this rank."""
        names = [name for name, _ in self.domains]
        choices = [_choices(domain, rank) for _, domain in self.domains]
        for combination in itertools.product(*choices):
            yield dict(zip(names, combination, strict=True))

    def some(self, rank: int) -> Iterator[dict[str, Any]]:
        """Enough combinations to see all forms, which seldom depend on which axes are meant."""
        return self._of_axes(_few_axes(rank))

    def with_one_axis(self, rank: int) -> Iterator[dict[str, Any]]:
        """The combinations in which all axes are the last one."""
        return self._of_axes(_few_axes(rank)[:1])

    def _of_axes(self, axes: list[Any]) -> Iterator[dict[str, Any]]:
        names = [name for name, _ in self.domains]
        choices = [axes if domain is Axis else list(domain) for _, domain in self.domains]
        for combination in itertools.product(*choices):
            yield dict(zip(names, combination, strict=True))

    def has_axes(self) -> bool:
        return any(domain is Axis for _, domain in self.domains)

    def choice(self, combination: Mapping[str, Any]) -> Choice:
        """A combination without its axes; hashable."""
        return tuple(
            repr(combination[n]) for n, domain in self.domains if domain is not Axis
        )


def _choices(domain: Any, rank: int) -> list[Any]:
    return _axes(rank) if domain is Axis else list(domain)


def _axes(rank: int) -> list[Any]:
    if rank == 0:
        return [None]
    several = range(2, rank + 1) if rank <= _MANY_AXES else (rank,)
    sets = (axes for n in several for axes in itertools.combinations(range(rank), n))
    return [*range(rank), *sets]


def _few_axes(rank: int) -> list[Any]:
    return [rank - 1, 0, tuple(range(rank))] if rank > 1 else _axes(rank)


def read_statics(
    parameters: Mapping[str, inspect.Parameter],
    hints: Mapping[str, Any],
    where: str,
    both: str,
) -> Statics:
    """Read the domains of keyword-only parameters; `TypeError` if one has no finite domain."""
    domains: list[tuple[str, Any]] = []
    count = 1
    for name, parameter in parameters.items():
        annotation = hints.get(name, parameter.empty)
        if annotation is Axis:
            domains.append((name, Axis))
            continue
        if annotation is bool:
            values: tuple[Any, ...] = (False, True)
        elif typing.get_origin(annotation) is Literal:
            values = typing.get_args(annotation)
        elif annotation is parameter.empty and parameter.default is not parameter.empty:
            continue  # It keeps its default.
        else:
            raise TypeError(
                f"Keyword-only parameter {name!r} of {where} is an unknown static parameter, "
                "and needs a finite domain: annotate it with typing.Literal[...], bool or "
                "jaxrewrite.Axis." + both
            )
        count *= len(values)
        domains.append((name, values))
    if count > _MANY_COMBINATIONS:
        raise TypeError(
            f"The static parameters of {where} have {count} combinations; a pattern may "
            f"have {_MANY_COMBINATIONS}." + both
        )
    return Statics(tuple(domains))
