"""Decisions compiled by numba, for the optional extra `fast`."""
