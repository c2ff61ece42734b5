"""One exact pass of a model over the tokens of many threads."""
