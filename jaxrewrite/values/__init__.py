"""Ready value types: matrices with structure, weights, sparse arrays, units.

Loaded when it is first used, with the rules of all types.
"""

from . import _linalg as _linalg
from ._diagonal import Diagonal as Diagonal, Identity as Identity
from ._product import Product as Product
from ._scaled import Scaled as Scaled
from ._sparse import Sparse as Sparse
from ._structured_sparse import NMSparse as NMSparse
from ._sum import Sum as Sum
from ._uniform import Constant as Constant, Known as Known, Zero as Zero
