"""Pure functions, one equation in one place. Equation numbers are those of the GEM paper."""
