"""Search for a graph in a program, from one of its equations backwards and then forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .._compat import JaxprEqn
from .calls import Number, can_match
from .graph import Graph, Node, Ref
from .view import Made, Place, resolve, users


COMMUTATIVE = {"add", "add_any", "mul", "max", "min", "and", "or", "xor", "eq", "ne"}

# A balanced sum of 16 terms has 32768 orders. A search gives up after so many steps.
_MAX_STEPS = 2000


class Found(NamedTuple):
    """A graph in a program: the equation of each node, and what each operand is."""

    places: dict[int, Place]
    operands: dict[int, Any]


class Search:
    """One search, with all that was assumed so far and may have to be taken back.

    ``same_node`` compares a node with an equation. With ``numbers``, numbers have to be the
    same as well. In the body of a call (``is_open``), what the caller passes may be
    anything; then the search only tells whether something was assumed about it.
    """

    def __init__(
        self,
        graph: Graph,
        same_node: Callable[[Node, JaxprEqn], bool],
        numbers: bool,
        is_open: bool = False,
    ):
        self.graph = graph
        self.same_node = same_node
        self.numbers = numbers
        self.is_open = is_open
        self.places: dict[int, Place] = {}
        self.operands: dict[int, Any] = {}
        self.assumed = 0  # How often something was assumed about operands of the body.
        self._taken: dict[tuple[int, int], int] = {}
        self._trail: list[tuple[dict[Any, Any], Any]] = []
        self._choices: list[tuple[Any, int, int]] = []

    def from_root(self, node: int, place: Place) -> Iterator[Found]:
        """All ways in which the graph is there with ``node`` at ``place``."""
        return self._run((("place", node, place), None))

    def from_results(
        self, atoms: Sequence[Any], operands: Sequence[Any]
    ) -> Iterator[Found]:
        """All ways in which the graph is there with these results and operands."""
        for i, operand in enumerate(operands):
            self.operands[i] = operand
        goals: Any = None
        for ref, atom in zip(self.graph.results, atoms, strict=True):
            goals = ("ref", ref, atom), goals
        return self._run(goals)

    def _run(self, goals: Any) -> Iterator[Found]:
        steps = 0
        while True:
            holds = True
            while holds:
                while goals and holds:
                    goal, goals = goals
                    steps += 1
                    if steps > _MAX_STEPS:
                        return
                    holds, more = self._step(goal, goals)
                    goals = more
                if not holds:
                    break
                pending = self._forwards()
                if pending is None:
                    break
                holds, goals = pending
            if holds:
                yield Found(dict(self.places), dict(self.operands))
            if not self._choices:
                return
            goals, length, assumed = self._choices.pop()
            self.assumed = assumed
            while len(self._trail) > length:
                mapping, key = self._trail.pop()
                del mapping[key]

    def _put(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        mapping[key] = value
        self._trail.append((mapping, key))

    def _choose(self, goals: Any) -> None:
        self._choices.append((goals, len(self._trail), self.assumed))

    def _step(self, goal: Any, rest: Any) -> tuple[bool, Any]:
        """Whether a goal holds, and the goals that are left."""
        if goal[0] == "place":
            return self._place(goal[1], goal[2], rest)
        _, ref, atom = goal
        if atom is None:
            return False, rest
        kind = ref[0]
        if self.is_open and kind != "operand" and type(atom) is Made and atom.index < 0:
            self.assumed += 1
            return True, rest
        if kind == "node":
            if type(atom) is not Made or atom.index < 0 or atom.k != ref[2]:
                return False, rest
            return self._place(ref[1], (atom.frame, atom.index), rest)
        if kind == "number":
            holds = type(atom) is Number and (not self.numbers or ref[1].same(atom))
            return holds, rest
        if kind in ("operand", "scalar"):
            if kind == "scalar" and type(atom) is not Number:
                return False, rest
            return self._bind(ref[1], atom), rest
        return False, rest  # A literal that is not a number, or a closed-over array.

    def _bind(self, i: int, atom: Any) -> bool:
        bound = self.operands.get(i)
        if bound is None:
            self._put(self.operands, i, atom)
            return True
        if bound.same(atom):
            return True
        if self.is_open and _is_given(bound) and _is_given(atom):
            self.assumed += 1
            return True
        return False

    def _place(self, n: int, place: Place, rest: Any) -> tuple[bool, Any]:
        """Assume that a node is an equation."""
        frame, index = place
        known = self.places.get(n)
        if known is not None:
            return known[0] is frame and known[1] == index, rest
        key = id(frame), index
        node, eqn = self.graph.nodes[n], frame.eqn(index)
        if (
            key in self._taken
            or len(eqn.invars) != len(node.operands)
            or not self.same_node(node, eqn)
            or not can_match(eqn)
        ):
            return False, rest
        self._put(self.places, n, place)
        self._put(self._taken, key, n)
        atoms = [resolve(frame, atom) for atom in eqn.invars]
        if len(atoms) == 2 and eqn.primitive.name in COMMUTATIVE:
            a, b = node.operands
            if a != b and not _same_atom(*atoms):
                self._choose((("ref", a, atoms[1]), (("ref", b, atoms[0]), rest)))
        for ref, atom in zip(reversed(node.operands), reversed(atoms), strict=True):
            rest = ("ref", ref, atom), rest
        return True, rest

    def _forwards(self) -> Any:
        """The next node that no result found so far depends on; ``None`` if there is none.

        It is one of the equations that use an operand or a result that is known.
        """
        if len(self.places) == len(self.graph.nodes) or self.is_open:
            return None
        for n, node in enumerate(self.graph.nodes):
            if n in self.places:
                continue
            for ref in node.operands:
                atom = self._known(ref)
                if atom is None:
                    continue
                places = [
                    place
                    for place in users(atom.frame, atom.var)
                    if place is not None
                    and place[0].eqn(place[1]).primitive is node.primitive
                ]
                if not places:
                    return False, None
                for place in places[:0:-1]:
                    self._choose((("place", n, place), None))
                return True, (("place", n, places[0]), None)
        return False, None

    def _known(self, ref: Ref) -> Made | None:
        atom = None
        if ref[0] == "operand":
            atom = self.operands.get(ref[1])
        elif ref[0] == "node" and ref[1] in self.places:
            frame, index = self.places[ref[1]]
            atom = Made(frame, frame.eqn(index).outvars[ref[2]], index, ref[2])
        return atom if type(atom) is Made else None


def _is_given(atom: Any) -> bool:
    return type(atom) is Number or atom.index < 0


def _same_atom(a: Any, b: Any) -> bool:
    return a is not None and b is not None and type(a) is type(b) and a.same(b)


def same_primitive(node: Node, eqn: JaxprEqn) -> bool:
    """Whether an equation has the form of a node, whatever its parameters are."""
    return node.primitive is eqn.primitive and len(node.eqn.outvars) == len(eqn.outvars)


def is_open_at(graph: Graph, node: int, place: Place) -> bool:
    """Whether a graph may be there, in the body of a call, together with what is outside."""
    search = Search(graph, same_primitive, numbers=False, is_open=True)
    return any(search.assumed for _ in search.from_root(node, place))


def result_atoms(graph: Graph, found: Found) -> list[Any]:
    """What the results of a graph are in the program."""
    atoms = []
    for ref in graph.results:
        frame, index = found.places[ref[1]]
        atoms.append(Made(frame, frame.eqn(index).outvars[ref[2]], index, ref[2]))
    return atoms
