"""Benchmarks and their answers: scores, speed, structure, intervals, comparisons and reports."""
