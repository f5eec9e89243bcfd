"""Pattern rules: rules for several equations at once.

A pattern looks for a function, and replaces it by another function. A candidate is found
by primitives and data flow alone (`index`, `search`), with the forms that the function has
at a few shapes and dtypes (`probe`). The function is then traced at the operands' actual
avals, and has to give the same equations with the same parameters (`same`). The equations
of a match become one synthetic equation (`outline`), which the ordinary walk over the program
meets like any other (`handler`).
"""

from .._core.hooks import passes
from . import handler
from .outline import PATTERNS


passes.append(PATTERNS)

del PATTERNS, handler, passes
