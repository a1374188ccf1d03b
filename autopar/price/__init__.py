"""Configurations of other tools, priced as plans of ours."""

from autopar.price.figures import StepFigures
from autopar.price.price import Choice, Job, Priced, choice, job_of, price

__all__ = ["Choice", "Job", "Priced", "StepFigures", "choice", "job_of", "price"]
