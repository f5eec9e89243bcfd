"""How the leaves of a type lie in the array, and the methods and rules that follow from this.

A type declares it by `ArrayValue.axes`. `declaration` reads the declaration, `methods` gives the
type the methods that a user would otherwise define, and `moves` has the rules for primitives that
only move entries.
"""

from . import moves as moves, several as several, writes as writes
