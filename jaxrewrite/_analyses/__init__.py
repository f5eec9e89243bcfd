"""Facts about the equations of a program: written numbers, calls, equations that are the same.

The import of this package registers the hook that lets values take the numbers of a program.
"""

from . import adopting as adopting
