"""Ready value types: matrices with structure, weights, sparse arrays, units.

Loaded when it is first used, with the rules of all types.
"""

from ._interval import Interval as Interval
from ._keys import Threefry as Threefry
from ._masked import Masked as Masked
from ._named import Named as Named
from ._tagged import Tagged as Tagged
from ._unitful import Unitful as Unitful, Units as Units, UnitsError as UnitsError
