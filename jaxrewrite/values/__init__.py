"""Ready value types: matrices with structure, weights, sparse arrays, units.

Loaded when it is first used, with the rules of all types.
"""

from . import _linalg as _linalg
from ._banded import Banded as Banded, Tridiagonal as Tridiagonal
from ._diagonal import Diagonal as Diagonal, Identity as Identity
from ._low_rank import LowRank as LowRank
from ._product import Product as Product
from ._scaled import Scaled as Scaled
from ._sum import Sum as Sum
from ._symmetric import Symmetric as Symmetric
from ._trees import freeze as freeze, nbytes as nbytes
from ._triangular import Triangular as Triangular
from ._uniform import Constant as Constant, Known as Known, Zero as Zero
from .lora import Lora as Lora, adapt as adapt
