"""The benchmark's tasks on current MuJoCo, in D4RL's own frames and constants."""
