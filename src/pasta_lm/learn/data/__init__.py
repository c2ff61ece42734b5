"""Training data: encoded examples and packs; rollouts, their scores, and preference pairs."""
