"""The state machine of one response: threads, visibility, positions, limits and its trace."""
