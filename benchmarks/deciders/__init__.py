"""Who `benchmarks/decisions.py` measures: the same decision by gemrl's backends and by others."""
