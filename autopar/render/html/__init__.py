"""A plan as one page that needs no network: what was decided, what it costs, how sure we are.

Works from a plan alone; with the model's graph it draws the roofline, with sources it shows them.
"""

from __future__ import annotations

from autopar.render.html.page import report
from autopar.render.html.roofline import Dot, Roofline, roofline, roofline_of_stages
from autopar.render.html.values import Extras
from autopar.render.html.written import written

__all__ = ["Dot", "Extras", "Roofline", "report", "roofline", "roofline_of_stages", "written"]
