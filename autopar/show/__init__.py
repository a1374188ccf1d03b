"""Everything that is shown to people: values in, rich renderables or text out; nothing prints."""

from autopar.show.fold import Folded, fold
from autopar.show.plan import show_plan
from autopar.show.units import nbytes, seconds

__all__ = ["Folded", "fold", "nbytes", "seconds", "show_plan"]
