"""How values go through each higher-order primitive: one module a family.

Importing this package registers the handlers with the rewriting.
"""

from . import (
    calls as calls,
    cond as cond,
    custom_jvp as custom_jvp,
    custom_vjp as custom_vjp,
    scan as scan,
    while_loop as while_loop,
)
