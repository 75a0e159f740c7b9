"""gemrl's decision with its JAX backend, which evaluates densely."""

from deciders.gemrl_fast import maker

make = maker("jax")
