"""How values go through each higher-order primitive, and collectives: one module a family.

Importing this package registers the handlers with the rewriting.
"""

from . import (
    calls as calls,
    collectives as collectives,
    composite as composite,
    cond as cond,
    custom_jvp as custom_jvp,
    custom_vjp as custom_vjp,
    custom_vmap as custom_vmap,
    hi_primitive as hi_primitive,
    linear_call as linear_call,
    linear_solve as linear_solve,
    scan as scan,
    shard_map as shard_map,
    while_loop as while_loop,
)
