"""Ready value types: matrices with structure, weights, sparse arrays, units.

Loaded when it is first used, with the rules of all types; `Sparse` by itself, since JAX's
own sparse matrices, which it wraps, take as long to load as all the others.
"""

from . import _level as _level, _linalg as _linalg, _matrix_rules as _matrix_rules
from ._banded import Banded as Banded, Tridiagonal as Tridiagonal
from ._block_diagonal import BlockDiagonal as BlockDiagonal
from ._diagonal import Diagonal as Diagonal, Identity as Identity
from ._interval import Interval as Interval
from ._keys import Threefry as Threefry
from ._kronecker import Kronecker as Kronecker
from ._low_rank import LowRank as LowRank
from ._masked import Masked as Masked
from ._named import Named as Named
from ._nf4 import NF4 as NF4
from ._one_hot import OneHot as OneHot, Picked as Picked
from ._permutation import Permutation as Permutation
from ._product import Product as Product
from ._quantise import quantise as quantise
from ._quantised import Quantised as Quantised
from ._scaled import Scaled as Scaled
from ._strict import strict_zeros as strict_zeros
from ._structured_sparse import NMSparse as NMSparse
from ._sum import Sum as Sum
from ._symmetric import Symmetric as Symmetric
from ._tagged import Tagged as Tagged
from ._toeplitz import Circulant as Circulant, Toeplitz as Toeplitz
from ._trees import (
    combine as combine,
    freeze as freeze,
    nbytes as nbytes,
    partition as partition,
)
from ._triangular import Triangular as Triangular
from ._uniform import Constant as Constant, Known as Known, Zero as Zero
from ._unitful import Unitful as Unitful, Units as Units, UnitsError as UnitsError
from .lora import Lora as Lora, adapt as adapt


def __getattr__(name: str) -> object:
    if name == "Sparse":
        from ._sparse import Sparse

        return Sparse
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
