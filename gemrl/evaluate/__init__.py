"""Rollouts, the rows they leave, and what is made of rows."""
