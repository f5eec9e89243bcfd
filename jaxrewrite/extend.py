"""How another library plugs in: passes over programs, operands that were moved, state that is no
argument, tables of classes.

See `Extending the library <../extending.rst>`_.
"""

from ._core.dead_code import DataFlow as DataFlow, live_equations as live_equations
from ._core.hooks import (
    ALL_PRIMITIVES as ALL_PRIMITIVES,
    Analysis as Analysis,
    ClassHook as ClassHook,
    OperandsHook as OperandsHook,
    Pass as Pass,
    StagingHook as StagingHook,
    register_class_hook as register_class_hook,
    register_operands_hook as register_operands_hook,
    register_pass as register_pass,
    register_staging_hook as register_staging_hook,
    unregister as unregister,
)
from ._core.rules import add_entry as add_entry
from ._joins.zeros import Zeros as Zeros
from ._warn import warn_from_rule as warn_from_rule
