"""A plan as one page that needs no network: what was decided, what it costs, how sure we are.

Works from a plan alone; with the model's graph it draws the roofline, with sources it shows them.
"""

from __future__ import annotations

from autopar.report.page import report
from autopar.report.roofline import Dot, Roofline, roofline, roofline_of_stages
from autopar.report.values import Extras
from autopar.report.written import written

__all__ = ["Dot", "Extras", "Roofline", "report", "roofline", "roofline_of_stages", "written"]
