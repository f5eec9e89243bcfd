"""How the leaves of a type lie in the array, and what follows from that.

A type says it by `ArrayValue.axes`. `declaration` reads that, `methods` gives the type what a user
would else define, and `moves` has the rules for primitives that only move entries.
"""

from . import moves as moves, several as several
