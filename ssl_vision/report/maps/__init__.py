"""Plots of objectives: gate, weight and ratio over angles, and W over negatives and temperature."""

from ssl_vision.report.maps.simulation import Maps, angles, simulated
from ssl_vision.report.maps.terms import Terms, doubles, scaling, terms

__all__ = ["Maps", "Terms", "angles", "doubles", "scaling", "simulated", "terms"]
