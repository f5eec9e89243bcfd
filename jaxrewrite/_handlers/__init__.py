"""The handlers of higher-order primitives, one module for each family, and of moves of arrays.

The import of this package registers the handlers.
"""

from . import (
    calls as calls,
    choice as choice,
    collectives as collectives,
    composite as composite,
    cond as cond,
    custom_jvp as custom_jvp,
    custom_vjp as custom_vjp,
    custom_vmap as custom_vmap,
    expansions as expansions,
    functions as functions,
    hi_primitive as hi_primitive,
    leafwise as leafwise,
    linear_call as linear_call,
    linear_solve as linear_solve,
    nesting as nesting,
    padding as padding,
    ragged_dot as ragged_dot,
    scan as scan,
    shard_map as shard_map,
    traced_anew as traced_anew,
    triangles as triangles,
    while_loop as while_loop,
)
