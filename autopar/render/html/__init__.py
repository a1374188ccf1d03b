"""Renders a plan as one self-contained HTML page: its decisions, costs and lower bounds.

The plan alone suffices.  With the model's graph the page has a roofline, and with sources it shows them.
"""

from __future__ import annotations

from autopar.render.html.page import report
from autopar.render.html.roofline import Dot, Roofline, roofline, roofline_of_stages
from autopar.render.html.values import Extras
from autopar.render.html.written import written

__all__ = ["Dot", "Extras", "Roofline", "report", "roofline", "roofline_of_stages", "written"]
