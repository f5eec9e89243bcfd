"""Search for a graph in a program, from one of its equations backwards and then forwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .. import _compat
from .._analyses.calls import Number, can_match, is_move
from .._analyses.graph import Graph, Node, Ref
from .._analyses.same import same_equation
from .._compat import JaxprEqn
from ..primitives import COMMUTATIVE
from .bodies import Body, Group, groups, is_empty_slices, is_hole_scan, same_scan
from .view import (
    Location,
    Variable,
    chain,
    look_at,
    make_the_same,
    resolve,
    users,
    users_behind_moves,
)


# A balanced sum of 16 terms has 32768 orders. A search gives up after so many steps.
_MAX_STEPS = 2000


def root(graph: Graph) -> int:
    """The node that a search starts from.

    It is the node of a result that the most nodes lead to, or a scan whose body is unknown.
    """
    reached: list[set[int]] = []
    for n, node in enumerate(graph.nodes):
        if is_hole_scan(node.eqn):
            return n
        nodes = {n}
        for ref in node.operands:
            if ref[0] == "node":
                nodes |= reached[ref[1]]
        reached.append(nodes)
    return max((ref[1] for ref in graph.results), key=lambda n: (len(reached[n]), n))


class Embedding(NamedTuple):
    """An embedding of a graph in a program: the equation of each node, and the operands.

    A search by form finds for each operand several atoms, of which each is a moved or
    converted form of the next.
    ``has_copies`` tells whether some equations make the result of one of these again.
    """

    locations: dict[int, Location]
    operands: dict[int, Any]
    has_copies: bool


def _context(eqn: JaxprEqn) -> Any:
    """What the program tells the compiler of the part that an equation is in."""
    return eqn.ctx.compute_type, eqn.ctx.xla_metadata


class Search:
    """One search, with all assumptions so far, which may have to be taken back.

    Parameters
    ----------
    graph
        The graph that is searched for.
    by_form
        Whether parameters, numbers, and equations that only move arrays are left out. The
        graph has no such equations then.
    is_open
        Whether the program is the body of a call, and its arguments may be anything. The
        search then only tells whether something was assumed about them.
    body
        Which operand is the body of a scan.
    """

    def __init__(
        self, graph: Graph, by_form: bool, is_open: bool = False, body: int | None = None
    ):
        self.graph = graph
        self.body = body
        self.by_form = by_form
        self.is_open = is_open
        # How far the search came: the most equations found, and the node and equation that
        # differ next.
        self.nearest: tuple[int, Node | None, Location | None] = (0, None, None)
        self.assumed = 0  # How often something was assumed about operands of the body.
        # In a graph of moves alone, a move is an equation like any other.
        self._skips = by_form and not any(is_move(node.eqn) for node in graph.nodes)
        self._locations: dict[Any, Any] = {}
        self._operands: dict[Any, Any] = {}
        self._assigned: dict[Any, Any] = {}
        self._copies: dict[Any, Any] = {}
        self._trail: list[tuple[dict[Any, Any], Any, Any]] = []
        self._choices: list[tuple[Any, int, int]] = []
        self._context: Any = None

    def run(
        self, node: int, location: Location, operands: Mapping[int, Any] | None = None
    ) -> Iterator[Embedding]:
        """All embeddings of the graph, with ``node`` at ``location``.

        ``operands`` are known operands.
        """
        self._operands.update(operands or {})
        # What is around an equation, such as `compute_on`, is around what takes its place.
        self._context = _context(location[0].eqn(location[1]))
        goals: Any = ("assign", node, location), None
        steps = 0
        while True:
            holds = True
            while holds:
                while goals and holds:
                    goal, goals = goals
                    steps += 1
                    if steps > _MAX_STEPS:
                        return
                    holds, goals = self._step(goal, goals)
                if not holds:
                    break
                pending = self._forwards()
                if pending is None:
                    break
                holds, goals = pending
            if holds:
                yield Embedding(
                    dict(self._locations),
                    dict(self._operands),
                    bool(self._copies),
                )
            if not self._choices:
                return
            goals, length, self.assumed = self._choices.pop()
            while len(self._trail) > length:
                mapping, key, old = self._trail.pop()
                if old is None:
                    del mapping[key]
                else:
                    mapping[key] = old

    def _put(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        self._trail.append((mapping, key, mapping.get(key)))
        mapping[key] = value

    def _choose(self, goals: Any) -> None:
        self._choices.append((goals, len(self._trail), self.assumed))

    def _step(self, goal: Any, rest: Any) -> tuple[bool, Any]:
        """Whether a goal holds, and the goals that are left."""
        if goal[0] == "assign":
            return self._assign(goal[1], goal[2], rest)
        if goal[0] == "scan":
            return self._assign_scan(goal[1], goal[2], rest, goal[3])
        _, ref, atom = goal
        atoms = chain(atom) if self._skips else [atom]
        if atoms[-1] is None:
            return False, rest
        kind = ref[0]
        if kind == "operand":
            return self._bind(ref[1], atoms if self.by_form else atom), rest
        atom = atoms[-1]
        if self.is_open and _is_given(atom) and type(atom) is Variable:
            self.assumed += 1
            return True, rest
        if kind == "node":
            if type(atom) is not Variable or atom.index < 0:
                return False, rest
            if atom.k != self._result(ref, atom.frame.eqn(atom.index)):
                return False, rest
            return self._assign(ref[1], (atom.frame, atom.index), rest)
        if kind == "number":
            return type(atom) is Number and (self.by_form or ref[1].same(atom)), rest
        if kind == "scalar" and type(atom) is Number:
            return self._bind(ref[1], [atom] if self.by_form else atom), rest
        return False, rest  # A literal that is not a number, or a closed-over array.

    def _bind(self, i: int, operand: Any) -> bool:
        known = self._operands.get(i)
        if known is None:
            self._put(self._operands, i, operand)
            return True
        if not self.by_form:
            return known.same(operand)
        common = [atom for atom in known if any(_same(atom, other) for other in operand)]
        if common:
            if len(common) < len(known):
                self._put(self._operands, i, common)
            return True
        return self.is_open and self._assume_same(known[-1], operand[-1])

    def _assume_same(self, first: Any, second: Any) -> bool:
        """Whether two atoms in the body of a call are one array if the caller passes one."""
        holds = _is_given(first) and _is_given(second)
        if type(first) is type(second) is Variable and first.index >= 0 <= second.index:
            holds = same_equation(
                first.frame.eqn(first.index), second.frame.eqn(second.index)
            )
        self.assumed += holds
        return holds

    def _assign_again(self, n: int, location: Location) -> bool:
        """Whether an equation makes the same array as the equation of a node."""
        first, key = self._locations[n], (id(location[0]), location[1])
        if self._assigned.get(key) == n:
            return True
        if key in self._assigned or is_hole_scan(self.graph.nodes[n].eqn):
            return False
        holds = make_the_same(first, location)
        if self.is_open and not holds:
            holds = same_equation(first[0].eqn(first[1]), location[0].eqn(location[1]))
            self.assumed += holds
        if holds:
            self._put(self._assigned, key, n)
            self._put(self._copies, key, location)
        return holds

    def _assign(self, n: int, location: Location, rest: Any) -> tuple[bool, Any]:
        """Assume that a node is an equation."""
        frame, index = location
        look_at(frame, index)
        if n in self._locations:
            return self._assign_again(n, location), rest
        key = id(frame), index
        node, eqn = self.graph.nodes[n], frame.eqn(index)
        if is_hole_scan(node.eqn):
            return self._assign_scan(n, location, rest)
        if (
            key in self._assigned
            or len(eqn.invars) != len(node.operands)
            or not self._is_like(node, eqn)
            or _context(eqn) != self._context
            or not can_match(eqn)
        ):
            if len(self._locations) >= self.nearest[0]:
                self.nearest = len(self._locations), node, location
            return False, rest
        self._take(n, location)
        atoms = [resolve(frame, atom) for atom in eqn.invars]
        if len(atoms) == 2 and eqn.primitive.name in COMMUTATIVE:
            a, b = node.operands
            if a != b and not _same(*atoms):
                self._choose((("ref", a, atoms[1]), (("ref", b, atoms[0]), rest)))
        for ref, atom in zip(reversed(node.operands), reversed(atoms), strict=True):
            rest = ("ref", ref, atom), rest
        return True, rest

    def _assign_scan(self, n: int, location: Location, rest: Any, first: int = 0) -> Any:
        """Assume that a scan whose body is unknown is an equation.

        ``first`` is the number of the y that comes first in the graph, where one y is told
        from the others. It may be any.
        """
        frame, index = location
        node, eqn = self.graph.nodes[n], frame.eqn(index)
        if eqn.effects or eqn.primitive.name != "scan":
            return False, rest
        if self.is_open:  # Its uses are outside, and not looked at.
            self.assumed += 1
            return True, None
        if self.body is None:
            return False, rest
        consts, carry, xs = groups(eqn, [resolve(frame, atom) for atom in eqn.invars])
        if not self.by_form:
            if not same_scan(node.eqn, eqn, self._operands[self.body]):
                return False, rest
            self._take(n, location)
            with_entries = [
                ref
                for ref, atom in zip(node.operands, node.eqn.invars, strict=True)
                if not is_empty_slices(atom.aval)
            ]
            for ref, atom in zip(with_entries, [*carry, *xs], strict=True):
                rest = ("ref", ref, atom), rest
            return True, rest
        count = len(eqn.outvars) - len(carry)
        expected = len(node.eqn.outvars) - _compat.scan_counts(node.eqn.params)[1]
        if expected > 1 and expected != count:
            return False, rest
        if expected == 1 and first + 1 < count:
            self._choose((("scan", n, location, first + 1), rest))
        self._take(n, location)
        _, carry_refs, xs_refs = groups(node.eqn, node.operands)
        holds = self._bind(self.body, [Body.of(eqn, consts, first)])
        for refs, atoms in (carry_refs, carry), (xs_refs, xs):
            if len(refs) == 1 and refs[0][0] == "operand":
                group = Group.of(atoms, eqn.params["length"])
                holds = holds and None not in atoms and self._bind(refs[0][1], [group])
            elif len(refs) == len(atoms):
                for ref, atom in zip(refs, atoms, strict=True):
                    rest = ("ref", ref, atom), rest
            else:
                holds = False
        return holds, rest

    def _take(self, n: int, location: Location) -> None:
        self._put(self._locations, n, location)
        self._put(self._assigned, (id(location[0]), location[1]), n)

    def _result(self, ref: Ref, eqn: JaxprEqn) -> int:
        """Which result of an equation a reference means."""
        scan, k = self.graph.nodes[ref[1]].eqn, ref[2]
        if self.body is None or eqn.primitive.name != "scan" or not is_hole_scan(scan):
            return k
        known = self._operands[self.body]
        (body,) = known if self.by_form else (known,)
        if self.by_form:
            (_, node_carry), (_, carry) = map(
                _compat.scan_counts, (scan.params, eqn.params)
            )
            k = k if k < node_carry else k - node_carry + carry
        return body.result(k) if k < len(eqn.outvars) else k

    def result_atoms(self, embedding: Embedding) -> list[Variable]:
        """The variables of the program that are the results of the graph."""
        atoms = []
        for ref in self.graph.results:
            frame, index = embedding.locations[ref[1]]
            k = self._result(ref, frame.eqn(index))
            atoms.append(Variable(frame, frame.eqn(index).outvars[k], index, k))
        return atoms

    def _is_like(self, node: Node, eqn: JaxprEqn) -> bool:
        if not self.by_form:
            return same_equation(node.eqn, eqn)
        return node.primitive is eqn.primitive and len(node.eqn.outvars) == len(eqn.outvars)

    def _forwards(self) -> Any:
        """The next node that no result found so far depends on; ``None`` if there is none.

        It is one of the equations that use an operand or a result that is known.
        """
        if len(self._locations) == len(self.graph.nodes) or self.is_open:
            return None
        find = users_behind_moves if self._skips else users
        for n, node in enumerate(self.graph.nodes):
            if n in self._locations:
                continue
            for ref in node.operands:
                atom = self._known(ref)
                if atom is None:
                    continue
                locations = [
                    user
                    for user in find(atom.frame, atom.var)
                    if user is not None
                    and user[0].eqn(user[1]).primitive is node.primitive
                    and (id(user[0]), user[1]) not in self._assigned
                ]
                if not locations:
                    return False, None
                for location in locations[:0:-1]:
                    self._choose((("assign", n, location), None))
                return True, (("assign", n, locations[0]), None)
        return False, None

    def _known(self, ref: Ref) -> Variable | None:
        atom = None
        if ref[0] == "operand":
            atom = self._operands.get(ref[1])
            if self.by_form and atom is not None:
                atom = atom[-1]
        elif ref[0] == "node" and ref[1] in self._locations:
            frame, index = self._locations[ref[1]]
            k = self._result(ref, frame.eqn(index))
            if k < len(frame.eqn(index).outvars):
                atom = Variable(frame, frame.eqn(index).outvars[k], index, k)
        return atom if type(atom) is Variable else None


def _is_given(atom: Any) -> bool:
    return type(atom) is Number or atom.index < 0


def _same(a: Any, b: Any) -> bool:
    return a is not None and b is not None and type(a) is type(b) and a.same(b)


def is_open_at(graph: Graph, node: int, location: Location) -> bool:
    """Whether a graph may be there, partly in the body of a call and partly outside."""
    search = Search(graph, by_form=True, is_open=True)
    return any(search.assumed for _ in search.run(node, location))
