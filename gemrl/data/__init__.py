"""Datasets in: readers, checks, fingerprints, the task table and recipes."""
