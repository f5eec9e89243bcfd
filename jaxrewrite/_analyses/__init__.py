"""Facts about the equations of a program: written numbers, calls, equations that are the same.

The import of this package registers the hooks that let values take the numbers of a program, and
numbers choose branches.
"""

from . import adopting as adopting, choosing as choosing
