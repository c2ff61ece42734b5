"""Write a model in the formats that stock inference servers load."""
