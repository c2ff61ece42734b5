"""Declared parts: fields of a schema, holes of a text and questions, decoded at the same time."""
