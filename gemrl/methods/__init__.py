"""Phase I: one file a method, on the protocol in `protocol.py`."""

from gemrl.errors import ConfigError
from gemrl.methods import (
    awac,
    bc,
    cql,
    diffusionql,
    dt,
    edac,
    fql,
    gem,
    idql,
    ifql,
    iql,
    rebrac,
    sacn,
    ssar,
    td3bc,
)
from gemrl.methods.protocol import Method, MethodConfig

METHODS: dict[str, Method] = {
    module.METHOD.name: module.METHOD
    for module in (
        gem,
        iql,
        bc,
        td3bc,
        awac,
        cql,
        rebrac,
        sacn,
        edac,
        dt,
        idql,
        diffusionql,
        fql,
        ifql,
        ssar,
    )
}


def method_named(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise ConfigError(f"method = {name!r}: must be one of {', '.join(METHODS)}")
    return METHODS[name]


def default_config(name: str, task: str | None) -> MethodConfig:
    """A method's own defaults, with what the task's suite asks for."""
    return method_named(name).config.for_task(task)


def method_of(config: MethodConfig) -> Method:
    """The method that a configuration is for."""
    for method in METHODS.values():
        if method.config is type(config):
            return method
    raise ConfigError(f"{type(config).__name__} is not the configuration of any method")
