"""What the equations of a program tell: what is written, what calls do, what is the same.

The import of this package registers the hook that lets values take what a program writes.
"""

from . import adopting as adopting
