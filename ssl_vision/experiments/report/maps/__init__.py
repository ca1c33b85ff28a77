"""Plots of objectives: gate, weight and ratio over angles, and W over negatives and temperature."""
