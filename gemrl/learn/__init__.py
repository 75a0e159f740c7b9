"""Phase I as a process: the compiled loop, checkpoints and bundles."""
