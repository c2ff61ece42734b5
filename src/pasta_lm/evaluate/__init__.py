"""Was it worth it: graded answers, speed, structure, and the intervals of each."""
