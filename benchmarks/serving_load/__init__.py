"""A policy server under load: its process, lean clients, and how fast they are answered."""
