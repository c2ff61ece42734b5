"""Annotation: a teacher model, or a rule, marks the independent parts of existing answers."""
