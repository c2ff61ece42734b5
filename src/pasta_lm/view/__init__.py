"""Draw an answer: the page, a notebook cell, a trace viewer."""
