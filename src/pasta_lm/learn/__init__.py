"""Data, annotation, judging and both training stages."""
