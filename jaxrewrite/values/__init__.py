"""Ready value types: matrices with structure, weights, sparse arrays, units.

Loaded when it is first used, with the rules of all types.
"""

from ._nf4 import NF4 as NF4
from ._quantise import quantise as quantise
from ._quantised import Quantised as Quantised
