"""Short tile and layout specs to readable CuTe kernels."""

__version__ = "0.1.0"
