"""`Site`: an equation that is rewritten, and where its rewritten form goes.

Rules, handlers and all other code that replaces an equation get its site. The site knows the
equation, the variables for its results, and the source info for the new equations, which it
adds to its builder.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax.tree_util import tree_flatten, tree_unflatten

from .. import _compat
from .._compat import Atom, DropVar, Jaxpr, JaxprEqn, Primitive, SourceInfo, Var
from .annotations import named_in_errors
from .avals import aval_of, avals_of, is_adopted, is_annotation, values_inside
from .builder import Applied, Rewritten
from .dense import NO_RULE, Reason, make_dense, materialised, policy_on
from .errors import MaterialisationWarning, at_line
from .notices import Notice
from .traces import Flat, RuleResult
from .value import Like, Operand, Value, is_value


if TYPE_CHECKING:
    from .rewrite import Rewriter
    from .settings import Settings


Enough: TypeAlias = Callable[[Operand], bool]
"""Whether a value may stay as it is where others become dense."""


def is_never(x: Any) -> bool:
    """Whether a value may stay where all become dense."""
    return False


# Adds the equations of a function of leaves, and returns its results.
CallOnLeaves: TypeAlias = Callable[[Callable[..., list[Any]], list[Any]], list[Any]]
# Give values a normal form, where they enter a program or a rule returns them.
forms: list[Callable[[Value, CallOnLeaves], Operand]] = []


def in_form(x: Operand, call: CallOnLeaves) -> Operand:
    """An operand in normal form."""
    for form in forms:
        x = form(x, call) if is_value(x) else x
    return x


def is_hiding(x: Any, kinds: tuple[type[Value], ...] = ()) -> bool:
    """Whether rules do not hold for an annotation inside, as those that see ``kinds`` alone."""
    if not is_value(x) or is_annotation(x):
        return False
    is_seen = lambda y: any(isinstance(y, k) or issubclass(k, type(y)) for k in kinds)
    holds = lambda y: y._distributes or x._holds_stacked_leaves
    return any(is_seen(y) or not holds(y) for y in values_inside(x))


class Site(NamedTuple):
    """An equation that is rewritten, with the builder that its rewritten form is added to.

    Results that are arrays are written to ``outvars`` if possible. ``origin`` tells where
    the rule was applied that made the equation. It is ``None`` for an equation of the program
    itself. Code that JAX runs later, when the builder is finished, may hold a site to say
    which equation it stands for.
    """

    builder: Rewriter
    eqn: JaxprEqn
    outvars: Sequence[Var]
    origin: SourceInfo | None = None

    @property
    def settings(self) -> Settings:
        """The rules and the policy of the program that is rewritten."""
        return self.builder.rewriting.settings

    @property
    def primitive(self) -> Primitive:
        return self.eqn.primitive

    @property
    def params(self) -> dict[str, Any]:
        return self.eqn.params

    @property
    def context(self) -> _compat.EqnContext:
        """The JAX settings under which the equation was traced."""
        return self.eqn.ctx

    @property
    def is_in_rule(self) -> bool:
        """Whether a rule made the equation. Without values it is then final."""
        return self.origin is not None

    @property
    def source_info(self) -> SourceInfo:
        """The source info for the equations that replace this one."""
        return _compat.source_within(self.origin, self.eqn.source_info)

    @property
    def line(self) -> tuple[str, int, str] | None:
        """The user's file, line and function, for a rule those where it was applied.

        An equation in the body of a function of JAX itself has none.
        """
        return _compat.source_location(self.origin or self.eqn.source_info)

    @property
    def scope(self) -> str:
        """The scope of names, by `jax.named_scope`: in Flax that of a layer."""
        return _compat.scope_of(self.source_info)

    def giving(self, outvars: Sequence[Var]) -> Site:
        """This site with other result variables, for another computation on its behalf."""
        return self._replace(outvars=outvars)

    def with_params(self, **params: Any) -> Site:
        """This site with some other parameters of the same primitive."""
        return self._replace(eqn=self.eqn.replace(params={**self.params, **params}))

    def scratch(self) -> Site:
        """This site in a builder of its own, for equations that only answer a question."""
        return self._replace(builder=self.builder.scratch())

    # --- equations like this one ---------------------------------------------------

    def emit(
        self,
        operands: Sequence[Any],
        outvars: Sequence[Var],
        params: dict[str, Any] | None = None,
        effects: _compat.Effects | None = None,
    ) -> None:
        """Add an equation like this one, with other atoms or parameters."""
        self.builder.emit(self.eqn, operands, outvars, self.source_info, params, effects)

    def map_leaves(self, operands: Sequence[Operand]) -> list[Any]:
        """Apply a primitive that is an identity to each leaf of its operands."""
        leaves, treedef = tree_flatten(list(operands))
        groups: dict[Any, list[int]] = {}
        for i, aval in enumerate(avals_of(leaves)):
            label: Hashable = i
            if self.primitive.multiple_results:
                # A barrier gives integers beside floating-point numbers tangents that other
                # primitives can't take. Parameters are for all operands at once.
                label = not self.params and jnp.issubdtype(aval.dtype, jnp.inexact)
            groups.setdefault(label, []).append(i)
        results: list[Any] = list(leaves)
        for positions in groups.values():
            group = [leaves[i] for i in positions]
            outvars = [
                Var(aval) for aval in _compat.result_avals(self.eqn, avals_of(group))
            ]
            self.emit(group, outvars)
            for i, var in zip(positions, outvars, strict=True):
                results[i] = var
        return tree_unflatten(treedef, results)

    def take_over(self, rewritten: Rewritten) -> list[Var]:
        """Take over the constants and warnings of a new equation's body; return constants."""
        self.builder.changed = True
        self.builder.notice(self.passed_on(rewritten.warnings))
        return [self.builder.const(value) for value in rewritten.consts]

    def notice(self, category: type[Warning], *args: str) -> None:
        """Warn when the program is finished, with the user's line of this equation."""
        self.builder.notice([Notice(category, args).at(self.line, self.scope)])

    def passed_on(self, notices: Iterable[Notice]) -> list[Notice]:
        """The notices from within this equation that hold for it, with its line."""
        notices = list(notices)
        if not notices:  # Nearly always; looking for the line takes long.
            return notices
        is_backward = _compat.is_transposed(self.source_info)
        line, scope = self.line, self.scope
        return [n.at(line, scope) for n in notices if not (n.is_forward and is_backward)]

    # --- equations of rules and other functions ---------------------------------

    def inline(self, jaxpr: Jaxpr, operands: Sequence[Operand]) -> list[Any]:
        """Add the equations of a jaxpr on behalf of this one, and return the results."""
        return self.builder.run(jaxpr, operands, self)

    def call(
        self,
        fn: Callable[..., Any],
        key: tuple[Any, ...],
        operands: Sequence[Operand],
        check: Callable[[Any], list[Any]],
        opaque: Container[int] = (),
    ) -> Any:
        """Add the equations of a function of the operands, as rules see them.

        If a child of an operand is a value, the function sees a tracer of its aval. The
        equations on that tracer are dispatched like any others. ``key`` identifies the
        function. A value at one of the positions ``opaque`` is a tracer of its aval, too.
        """
        flat = Flat.of(operands, self.context, opaque)
        by_function = self.builder.rewriting.by_function
        result = named_in_errors(by_function, fn, key, flat, check, by=key[0])
        return self.inline_trace(result, flat, operands)

    def inline_trace(self, result: RuleResult, flat: Flat, operands: Any = ()) -> Any:
        """Add the equations of the trace of a rule, and return its results."""
        traced = result.traced
        if traced is NotImplemented:
            return NotImplemented
        builder = self.builder
        builder.changed = True
        if builder.recorder is not None:
            builder.recorder.extend(result.inner)
        builder.notice(self.passed_on(notice.nowhere() for notice in traced.notices))
        targets = {
            var: self.outvars[i]
            for var, i in traced.dense_results
            if type(self.outvars[i]) is not DropVar
        }
        inputs = [*builder.constants(traced.jaxpr, traced.consts), *flat.leaves]
        start = len(builder.eqns)
        results = builder.run(traced.jaxpr, inputs, self, targets)
        # If a leaf is a value, these equations differ from the rule's trace.
        added = () if self.is_in_rule else builder.eqns[start:]
        is_of_arrays = len(added) > 1 and not any(map(is_value, flat.leaves))
        if is_of_arrays and not self._densifies(operands, added):
            builder.applied.append(Applied(traced.jaxpr, inputs, results, added))
        returned = tree_unflatten(traced.out_tree, results)
        return [in_form(x, self.call_on_arrays) for x in returned]

    def _densifies(self, operands: Sequence[Any], added: Sequence[JaxprEqn]) -> bool:
        """Whether a rule makes what is in an annotation dense, which differs if compiled apart."""
        pairs: Iterable[Any] = zip(self.eqn.invars, operands, strict=False)
        is_around = lambda x: is_annotation(x) and bool([*values_inside(x)])
        shapes = {atom.aval.shape for atom, x in pairs if is_around(x)}
        made: Any = (v.aval for e in added[:-1] for v in e.outvars)
        return bool(shapes) and any(aval.shape in shapes for aval in made)

    def call_on_arrays(self, fn: Callable[..., Any], leaves: Sequence[Any]) -> list[Any]:
        """Add the equations of a JAX function, from arrays to a list of arrays.

        This serves for primitives with parameters that a public function makes best.
        """
        debug_info = _compat.new_debug_info(self.primitive.name, fn)
        with self.context.manager:
            jaxpr, consts = _compat.trace_to_jaxpr(fn, avals_of(leaves), debug_info)
        return self.inline(jaxpr, [*self.builder.constants(jaxpr, consts), *leaves])

    def vary(self, atom: Atom, like: Like) -> Atom:
        """Make an array vary over the mesh axes over which ``like`` varies.

        Inside of `jax.shard_map` these axes are part of an array's type. Leaves of two values
        may differ in them although the arrays that the values stand for do not, and a value
        without leaves varies over none.
        """
        axes = _compat.varying_axes(like) - _compat.varying_axes(atom.aval)
        if not axes:
            return atom
        return self.call_on_arrays(lambda x: [_compat.vary_over(x, axes)], [atom])[0]

    # --- becoming dense ---------------------------------------------------------

    def materialise(
        self, value: Operand, reason: Reason = NO_RULE, is_enough: Enough = is_never
    ) -> Any:
        """Add the equations that make a value dense, and return the dense operand.

        Layers become dense up to one for which ``is_enough`` is true. Raises
        `MaterialisationError` if the policy or the type forbids it.
        """
        if not is_value(value) or is_enough(value):
            return value
        cls, builder = type(value), self.builder
        # What another value adopted is an array.
        policy = "allow" if is_adopted(value) else policy_on(cls, self.settings.policy)
        if policy == "forbid":
            raise reason.refusal(self.primitive, cls, self.settings.policy)
        if builder.recorder is not None and not cls._is_seen_dense:
            builder.recorder.became_dense(value, reason)
        key = id(value), is_enough
        if key not in builder.dense:
            builder.dense[key] = value, self.make_denser_until(value, reason, is_enough)
        if policy == "warn":
            self.notice(MaterialisationWarning, *reason.warning(self.primitive, cls))
        return builder.dense[key][1]

    def make_denser_until(
        self, value: Value, reason: Reason = NO_RULE, is_enough: Enough = is_never
    ) -> Any:
        """Make layer after layer of a value dense, up to one that may stay."""
        subject = f"{reason.on(self.primitive, type(value))}, which"

        def materialise(value: Value) -> Any:
            return materialised(value, subject)

        def make_layer_dense(value: Value, checked: Callable[[Any], Any]) -> Any:
            key = ("materialise", type(value))
            site = self.giving([Var(aval) for aval in avals_of([value])])
            return site.call(materialise, key, [value], lambda x: [checked(x)])[0]

        return make_dense(value, make_layer_dense, is_enough)


def describe(site: Site, operands: Sequence[Operand]) -> str:
    """A note that names an equation, its operands and the user's line.

    In the body of a function of JAX it has none: the note of the call of the function has it.
    """
    on = ", ".join(map(describe_operand, operands))
    where = _compat.source_location(site.eqn.source_info) or site.line
    return f"jaxrewrite: in primitive {site.primitive.name!r} on ({on}){at_line(where)}"


def describe_operand(operand: Operand) -> str:
    if not is_value(operand):
        return _compat.short(_compat.leaf_aval(operand))
    return f"{type(operand).__name__}:{_compat.short(aval_of(operand))}"
