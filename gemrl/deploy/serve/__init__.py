"""The policy server. It needs the extra gemrl[serve]."""

from gemrl.errors import MissingExtraError

try:
    import msgpack  # noqa: F401
    import prometheus_client  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
    import websockets  # noqa: F401
except ImportError as error:
    raise MissingExtraError(f"serving needs {error.name}: install gemrl[serve]") from error

from gemrl.deploy.serve.config import ServeConfig
from gemrl.deploy.serve.server import Server
from gemrl.deploy.serve.service import Service

__all__ = ["ServeConfig", "Server", "Service"]
