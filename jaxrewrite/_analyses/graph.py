"""The equations of a function as a graph, with all calls looked through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .._analyses.calls import Number, body_of, folded, is_move
from .._analyses.traits import BATCHED_LIKEWISE, LASTING, OF_ALL_DTYPES, OF_ALL_SIZES
from .._compat import Jaxpr, JaxprEqn, Literal, Primitive
from .._core.caches import WeakCaches


# An operand of a node: ``("operand", i)``, an operand of the function;
# ``("number", Number)``; ``("scalar", i)``, a number that stands for an operand; ``("node",
# i, k)``, result k of node i; ``("const", i)``, an array that the function closes over.
Ref = tuple[Any, ...]


class Node(NamedTuple):
    """An equation, with references for its operands."""

    eqn: JaxprEqn
    operands: tuple[Ref, ...]

    @property
    def primitive(self) -> Primitive:
        return self.eqn.primitive


class Graph(NamedTuple):
    """Nodes in program order, the references of the results, and closed-over arrays."""

    nodes: tuple[Node, ...]
    results: tuple[Ref, ...]
    consts: tuple[Any, ...] = ()

    def primitives(self) -> frozenset[Primitive]:
        return frozenset(node.primitive for node in self.nodes)

    def lasting_primitives(self) -> frozenset[frozenset[str]]:
        """Sets of primitives of each of which it has one, for all ranks, sizes and dtypes."""
        names = {primitive.name for primitive in self.primitives()}
        return frozenset(LASTING[name] for name in names & LASTING.keys())

    def is_of_all_dtypes(self) -> bool:
        """Whether operands of other dtypes seldom change more than conversions."""
        return all(p.name in OF_ALL_DTYPES for p in self.primitives())

    def is_of_all_sizes(self) -> bool:
        """Whether operands of other sizes seldom change more than moves."""
        return all(p.name in OF_ALL_SIZES for p in self.primitives())

    def is_batched_likewise(self) -> bool:
        """Whether `jax.vmap` changes nothing but shapes and moves."""
        return all(p.name in BATCHED_LIKEWISE for p in self.primitives())

    def core(self) -> tuple[Graph, tuple[int, ...]]:
        """The graph without nodes that only move arrays, and the old numbers of its nodes.

        It is the whole graph if some result is only a move of an operand.
        """
        kept = [n for n, node in enumerate(self.nodes) if not is_move(node.eqn)]
        new = {old: i for i, old in enumerate(kept)}

        def source(ref: Ref) -> Ref:
            while ref[0] == "node" and ref[1] not in new:
                ref = self.nodes[ref[1]].operands[0]
            return ("node", new[ref[1]], ref[2]) if ref[0] == "node" else ref

        results = tuple(map(source, self.results))
        if any(ref[0] != "node" for ref in results):
            return self, tuple(range(len(self.nodes)))
        nodes = [
            Node(self.nodes[n].eqn, tuple(map(source, self.nodes[n].operands)))
            for n in kept
        ]
        return self._replace(nodes=tuple(nodes), results=results), tuple(kept)

    def form(self) -> Any:
        """The graph without parameters, dtypes and numbers; hashable."""
        return (
            tuple(
                (n.primitive, len(n.eqn.outvars), tuple(map(_form, n.operands)))
                for n in self.nodes
            ),
            tuple(map(_form, self.results)),
        )

    def with_scalars(self, scalars: Sequence[tuple[int, Number]]) -> Graph:
        """The graph with operands in place of the numbers that stand for them."""

        def replaced(ref: Ref) -> Ref:
            if ref[0] == "number":
                for i, number in scalars:
                    if number.is_kind_of(ref[1]) and _converted(number, ref[1]).same(
                        ref[1]
                    ):
                        return "scalar", i
            return ref

        return self._mapped(replaced)

    def numbered(self, names: Sequence[Any]) -> Graph:
        """The graph with other names for its operands."""
        if list(names) == list(range(len(names))):
            return self
        return self._mapped(
            lambda ref: ("operand", names[ref[1]]) if ref[0] == "operand" else ref
        )

    def _mapped(self, change: Callable[[Ref], Ref]) -> Graph:
        nodes = [Node(n.eqn, tuple(map(change, n.operands))) for n in self.nodes]
        return self._replace(nodes=tuple(nodes), results=tuple(map(change, self.results)))

    def refs(self) -> set[Ref]:
        return {ref for node in self.nodes for ref in node.operands} | {*self.results}


def _converted(number: Number, like: Number) -> Number:
    return Number(number.value.astype(like.value.dtype))


def _form(ref: Ref) -> Ref:
    kind, *_ = ref
    return (kind,) if kind == "number" else ref


def flatten(jaxpr: Jaxpr, consts: Sequence[Any] = ()) -> Graph:
    """The graph of a jaxpr without constants, whose first operands are ``consts``."""
    nodes: list[Node] = []
    env: dict[Any, Ref] = {}
    for i, var in enumerate(jaxpr.invars):
        j = i - len(consts)
        env[var] = ("operand", j) if j >= 0 else ("const", i)
    _walk(jaxpr, env, nodes)
    return Graph(
        tuple(nodes), tuple(_ref(env, atom) for atom in jaxpr.outvars), tuple(consts)
    )


def _walk(jaxpr: Jaxpr, env: dict[Any, Ref], nodes: list[Node]) -> None:
    for eqn in jaxpr.eqns:
        operands = tuple(_ref(env, atom) for atom in eqn.invars)
        body = body_of(eqn)
        if body is not None:
            inner = dict(zip(body.invars, operands, strict=True))
            _walk(body, inner, nodes)
            results = [_ref(inner, atom) for atom in body.outvars]
            env.update(zip(eqn.outvars, results, strict=True))
            continue
        number = folded(eqn, operands[0][1]) if _is_number(operands) else None
        if number is not None:
            env[eqn.outvars[0]] = ("number", number)
            continue
        for k, var in enumerate(eqn.outvars):
            env[var] = ("node", len(nodes), k)
        nodes.append(Node(eqn, operands))


def _is_number(operands: Sequence[Ref]) -> bool:
    return len(operands) == 1 and operands[0][0] == "number"


def _ref(env: dict[Any, Ref], atom: Any) -> Ref:
    if type(atom) is not Literal:
        return env[atom]
    number = Number.of(atom)
    return ("literal", atom) if number is None else ("number", number)


_graphs = WeakCaches(1)


def graph_of(closed: Any, jaxpr: Jaxpr, consts: Sequence[Any]) -> Graph:
    """The graph of a jaxpr in the parameters of an equation, which is kept with it."""
    cache = _graphs.of(closed)
    graph = cache.get("graph")
    if graph is None:
        graph = flatten(jaxpr, consts)
        cache.put("graph", graph)
    return graph
