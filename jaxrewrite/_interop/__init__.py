"""Other libraries, one module each. None of them is imported here.

The import of this package registers the hooks and handlers for them.
"""

from . import (
    buffers as buffers,
    equinox as equinox,
    flax as flax,
    nnx as nnx,
)
