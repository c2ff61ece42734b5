"""Functions for few rows, compiled from C by the machine's own compiler where there is one."""
